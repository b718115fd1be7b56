"""A strict reader of the text that Prometheus scrapes."""

import re

SUFFIXES = {"counter": ("",), "gauge": ("",), "histogram": ("_bucket", "_sum", "_count")}


def read_string(text, at):
    """(a quoted string whose first quote is at `at`, where it ends)."""
    assert text[at] == '"'
    found, at = "", at + 1
    while text[at] != '"':
        if text[at] == "\\":
            at += 1
            found += {"\\": "\\", '"': '"', "n": "\n"}[text[at]]
        else:
            found += text[at]
        at += 1
    return found, at + 1


def read_sample(line):
    """(name, labels, value) of a line."""
    name = re.match(r"[a-zA-Z_:][a-zA-Z0-9_:]*", line)[0]
    at, labels = len(name), {}
    if line[at] == "{":
        at += 1
        while line[at] != "}":
            label = re.compile(r"([a-zA-Z_][a-zA-Z0-9_]*)=").match(line, at)
            value, at = read_string(line, label.end())
            assert label[1] not in labels
            labels[label[1]] = value
            at += line[at] == ","
        at += 1
    assert line[at] == " "
    return name, labels, float(line[at + 1 :])


def parse(text, openmetrics=False):
    """family -> (kind, help, {(name, labels in order of names): value}); whatever breaks the format fails."""
    assert text.endswith("\n")
    lines = text[:-1].split("\n")
    if openmetrics:
        assert lines.pop() == "# EOF"
    found, name = {}, None
    for line in lines:
        if line.startswith("#"):
            _, word, family, rest = line.split(" ", 3)
            if word == "HELP":
                assert family not in found
                name, found[family] = family, ["", re.sub(r"\\(.)", lambda m: {"n": "\n"}.get(m[1], m[1]), rest), {}]
            else:
                assert (word, family) == ("TYPE", name)
                assert found[name][0] == ""
                found[name][0] = rest
        else:
            sample, labels, value = read_sample(line)
            kind, _, samples = found[name]
            ends = ("_total",) if openmetrics and kind == "counter" else SUFFIXES[kind]
            assert sample in [name + end for end in ends]
            key = sample, tuple(sorted(labels.items()))
            assert key not in samples
            samples[key] = value
    for name, (kind, _, samples) in found.items():
        assert kind != "counter" or openmetrics or name.endswith("_total")
        if kind == "histogram":
            check_histogram(name, samples)
    return {name: tuple(f) for name, f in found.items()}


def check_histogram(name, samples):
    buckets = [(float(dict(labels)["le"]), value) for (n, labels), value in samples.items() if n == f"{name}_bucket"]
    assert buckets == sorted(buckets)
    assert [v for _, v in buckets] == sorted(v for _, v in buckets)
    assert buckets[-1][0] == float("inf")
    assert [v for (n, _), v in samples.items() if n == f"{name}_count"] == [buckets[-1][1]]
