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
KEYS = {"Enter": 13, "Escape": 27, "ArrowRight": 39, "Tab": 9}
# Faults of a page, as it meets them: of its scripts, and of its policy.
FAULTS = """
window.faults = [];
addEventListener("error", (e) => faults.push(`${e.message} ${e.filename}:${e.lineno}`));
addEventListener("unhandledrejection", (e) => faults.push(String(e.reason?.stack ?? e.reason)));
document.addEventListener("securitypolicyviolation", (e) => faults.push(`${e.violatedDirective} ${e.blockedURI}`));
"""


class Browser:
    """A browser that runs, and the page that is open in it. requests: addresses that the page has asked for."""

    def __init__(self, write, read):
        self._write, self._read, self._n, self._session, self._rest = write, read, 0, None, b""
        self.requests = []

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
            if answer.get("method") == "Network.requestWillBeSent":
                self.requests.append(answer["params"]["request"]["url"])
            if answer.get("id") == self._n:
                assert "error" not in answer, answer
                return answer["result"]

    def open(self, url, *, width=1000, height=760, dark=False, before=""):
        """Opens a page that shares nothing with those before. before: a script that runs ahead of its own."""
        self._session, self.requests = None, []
        context = self.call("Target.createBrowserContext")["browserContextId"]
        target = self.call("Target.createTarget", url="about:blank", browserContextId=context)["targetId"]
        self._session = self.call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        for domain in ("Page", "Network", "Runtime"):
            self.call(f"{domain}.enable")
        self.look(width, height, dark)
        self.call("Page.addScriptToEvaluateOnNewDocument", source=FAULTS + before)
        self.call("Page.navigate", url=url)
        self.ready()

    def reload(self):
        self.call("Page.reload")
        time.sleep(0.1)
        self.ready()

    def ready(self):
        assert self.wait("document.body?.dataset.ready === 'yes'"), self.value("JSON.stringify(window.faults)")

    def look(self, width, height, dark=False):
        """Sets the size of the window, and whether it is dark."""
        self.call(
            "Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=width < 600
        )
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        self.call("Emulation.setEmulatedMedia", features=[scheme])

    def value(self, script):
        """What a script gives in the page; it may be a promise."""
        found = self.call("Runtime.evaluate", expression=script, returnByValue=True, awaitPromise=True)
        assert "exceptionDetails" not in found, found["exceptionDetails"]["exception"].get("description", found)
        return found["result"].get("value")

    def wait(self, script, seconds=20.0):
        """Waits until a script gives something, and gives it."""
        until = time.monotonic() + seconds
        while not (found := self.value(script)) and time.monotonic() < until:
            time.sleep(0.02)
        return found

    def faults(self):
        """What went wrong in the page: errors, and what its policy forbade."""
        return self.value("window.faults")

    def place(self, selector):
        """The middle of an element."""
        wanted = json.dumps(selector)
        script = f"(() => {{ const one = document.querySelector({wanted}); one.scrollIntoView({{ block: 'nearest' }});"
        script += " const box = one.getClientRects()[0]; return [box.x + box.width / 2, box.y + box.height / 2] })()"
        return self.value(script)

    def click(self, selector):
        """Clicks in the middle of an element."""
        x, y = self.place(selector)
        for kind in ("mousePressed", "mouseReleased"):
            self.call("Input.dispatchMouseEvent", type=kind, x=x, y=y, button="left", clickCount=1)

    def hover(self, selector):
        x, y = self.place(selector)
        self.call("Input.dispatchMouseEvent", type="mouseMoved", x=x, y=y)

    def type(self, text):
        self.call("Input.insertText", text=text)

    def key(self, name, *, shift=False):
        """Presses a key, and lets it go."""
        text = {"text": "\r"} if name == "Enter" else {}
        code = {"key": name, "code": name, "windowsVirtualKeyCode": KEYS[name], "modifiers": 8 * shift}
        self.call("Input.dispatchKeyEvent", type="keyDown", **code, **text)
        self.call("Input.dispatchKeyEvent", type="keyUp", **code)

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
