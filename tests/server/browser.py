"""A real browser without a window: Chromium, told what to do through pipes."""

import base64
import contextlib
import json
import os
import shutil
import subprocess
import tempfile
import time

PROGRAM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")


class Browser:
    """One page of a browser that runs."""

    def __init__(self, write, read):
        self._write, self._read, self._n, self._session, self._rest = write, read, 0, None, b""

    def call(self, method, **params):
        """What a method of its protocol gives."""
        self._n += 1
        message = {"id": self._n, "method": method, "params": params}
        if self._session:
            message["sessionId"] = self._session
        os.write(self._write, json.dumps(message).encode() + b"\0")
        while True:
            while b"\0" not in self._rest:
                piece = os.read(self._read, 1 << 16)
                assert piece, "the browser ended"
                self._rest += piece
            one, _, self._rest = self._rest.partition(b"\0")
            answer = json.loads(one)
            if answer.get("id") == self._n:
                assert "error" not in answer, answer
                return answer["result"]

    def open(self, url):
        target = self.call("Target.createTarget", url="about:blank")["targetId"]
        self._session = self.call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        self.call("Page.enable")
        self.call("Page.navigate", url=url)

    def value(self, script):
        """What a script gives in the page."""
        return self.call("Runtime.evaluate", expression=script, returnByValue=True)["result"].get("value")

    def wait(self, script, seconds=20.0):
        """Waits until a script gives something."""
        until = time.monotonic() + seconds
        while not (found := self.value(script)) and time.monotonic() < until:
            time.sleep(0.02)
        return found

    def click(self, name):
        """Clicks in the middle of an element."""
        place = self.value(f"JSON.stringify(document.getElementById('{name}').getBoundingClientRect())")
        box = json.loads(place)
        x, y = box["x"] + box["width"] / 2, box["y"] + box["height"] / 2
        for kind in ("mousePressed", "mouseReleased"):
            self.call("Input.dispatchMouseEvent", type=kind, x=x, y=y, button="left", clickCount=1)

    def type(self, text):
        self.call("Input.insertText", text=text)

    def screenshot(self, path):
        with open(path, "wb") as file:
            file.write(base64.b64decode(self.call("Page.captureScreenshot", format="png")["data"]))


@contextlib.contextmanager
def browsing():
    """A browser that ends with the block."""
    to_read, to_write = os.pipe()
    from_read, from_write = os.pipe()
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
        flags = [
            "--headless", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--remote-debugging-pipe",
            f"--user-data-dir={folder}", "--window-size=900,760", "--no-first-run", "--disable-background-networking",
        ]  # fmt: skip
        # Its protocol reads from descriptor 3 and writes to 4.
        command = f'exec "$0" "$@" 3<&{to_read} 4>&{from_write}'
        process = subprocess.Popen(
            ["bash", "-c", command, PROGRAM, *flags], pass_fds=(to_read, from_write), stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )  # fmt: skip
        os.close(to_read)
        os.close(from_write)
        try:
            yield Browser(to_write, from_read)
        finally:
            process.kill()
            process.wait()
            os.close(to_write)
            os.close(from_read)
