"""Formats of strings, as patterns. Each matches a subset of its specification; the comments list the exceptions."""

__all__ = ["FORMATS", "NARROW_FORMATS", "REFUSED"]

# RFC 3339, section 5.6, with the number of days of each month.
_LEAP = "(?:[0-9]{2}(?:0[48]|[2468][048]|[13579][26])|(?:[02468][048]|[13579][26])00)"
_DATE = (
    r"(?:[0-9]{4}-(?:(?:0[13578]|1[02])-(?:0[1-9]|[12][0-9]|3[01])|(?:0[469]|11)-(?:0[1-9]|[12][0-9]|30)"
    rf"|02-(?:0[1-9]|1[0-9]|2[0-8]))|{_LEAP}-02-29)"
)
# Leap seconds are at the end of a day in UTC: with another offset than 0 they are left out.
_TIME = (
    r"(?:(?:[01][0-9]|2[0-3]):[0-5][0-9]:[0-5][0-9](?:\.[0-9]+)?(?:[Zz]|[+-](?:[01][0-9]|2[0-3]):[0-5][0-9])"
    r"|23:59:60(?:\.[0-9]+)?(?:[Zz]|[+-]00:00))"
)
# RFC 3339, appendix A.
_CLOCK = "T(?:[0-9]+H(?:[0-9]+M(?:[0-9]+S)?)?|[0-9]+M(?:[0-9]+S)?|[0-9]+S)"
_DURATION = rf"P(?:[0-9]+W|(?:[0-9]+Y(?:[0-9]+M(?:[0-9]+D)?)?|[0-9]+M(?:[0-9]+D)?|[0-9]+D)(?:{_CLOCK})?|{_CLOCK})"
_UUID = "[0-9a-fA-F]{8}-(?:[0-9a-fA-F]{4}-){3}[0-9a-fA-F]{12}"
_OCTET = "(?:25[0-5]|2[0-4][0-9]|1[0-9]{2}|[1-9]?[0-9])"
_IPV4 = rf"{_OCTET}(?:\.{_OCTET}){{3}}"
_H16 = "[0-9a-fA-F]{1,4}"
_LS32 = f"(?:{_H16}:{_H16}|{_IPV4})"
# RFC 3986, section 3.2.2.
_IPV6 = "(?:" + "|".join([
    f"(?:{_H16}:){{6}}{_LS32}",
    f"::(?:{_H16}:){{5}}{_LS32}",
    *(f"(?:(?:{_H16}:){{0,{n}}}{_H16})?::(?:{_H16}:){{{4 - n}}}{_LS32}" for n in range(5)),
    f"(?:(?:{_H16}:){{0,5}}{_H16})?::{_H16}",
    f"(?:(?:{_H16}:){{0,6}}{_H16})?::",
]) + ")"  # fmt: skip


def _label(most: int) -> str:
    """A label of a host name of at most so many characters. "--" in third place is left out: it marks other scripts,
    in an encoding with rules of its own."""
    a, h = "[a-zA-Z0-9]", "[a-zA-Z0-9-]"
    return f"{a}(?:{a}|{h}{a}|{h}{h}{a}|{h}(?:{a}{h}|-{a}){h}{{0,{most - 5}}}{a})?"


# RFC 1123 and 1034: 63 characters in a label, 253 in all. The fourth label and later ones are shorter here, and there
# are six at most: counting both at once would take many states.
_HOST = rf"{_label(63)}(?:\.{_label(63)}){{0,2}}(?:\.{_label(15)}){{0,3}}"
# RFC 5321, section 4.1.2.
_ATOM = "[a-zA-Z0-9!#$%&'*+/=?^_`{|}~-]"
_QUOTED = r'"(?:[ !#-\[\]-~]|\\[ -~]){0,31}"'
_LOCAL = rf"(?:{_ATOM}{{1,64}}|{_ATOM}{{1,31}}\.{_ATOM}{{1,32}}|{_ATOM}{{1,20}}(?:\.{_ATOM}{{1,20}}){{2}}|{_QUOTED})"
_EMAIL = rf"{_LOCAL}@(?:{_HOST}|\[{_IPV4}\]|\[[iI][pP][vV]6:{_IPV6}\])"


def _uri(more: str, private: str) -> dict[str, str]:
    """RFC 3986, appendix A; `more`, `private`: characters that RFC 3987 adds, the latter in queries."""
    unreserved, sub = rf"\-a-zA-Z0-9._~{more}", "!$&'()*+,;="
    encoded = "%[0-9a-fA-F]{2}"
    pchar = f"(?:[{unreserved}{sub}:@]|{encoded})"
    segments = f"(?:/{pchar}*)*"
    user = f"(?:(?:[{unreserved}{sub}:]|{encoded})*@)?"
    host = rf"(?:\[(?:{_IPV6}|[vV][0-9a-fA-F]+\.[\-a-zA-Z0-9._~{sub}:]+)\]|(?:[{unreserved}{sub}]|{encoded})*)"
    authority = f"//{user}{host}(?::[0-9]*)?{segments}"
    tail = rf"(?:\?(?:{pchar}|[/?{private}])*)?(?:#(?:{pchar}|[/?])*)?"
    rootless = f"{pchar}+{segments}"
    no_colon = f"(?:[{unreserved}{sub}@]|{encoded})+{segments}"
    absolute = f"/(?:{rootless})?"
    return {
        "absolute": f"[a-zA-Z][a-zA-Z0-9+.-]*:(?:{authority}|{absolute}|{rootless}|){tail}",
        "relative": f"(?:{authority}|{absolute}|{no_colon}|){tail}",
    }


_URI = _uri("", "")
_PLANES = "".join(rf"\u{{{plane:x}0000}}-\u{{{plane:x}fffd}}" for plane in range(1, 15))
_UCS = r"\u00a0-\ud7ff\uf900-\ufdcf\ufdf0-\uffef" + _PLANES
_PRIVATE = r"\ue000-\uf8ff\u{f0000}-\u{ffffd}\u{100000}-\u{10fffd}"
_IRI = _uri(_UCS, _PRIVATE)
_ROWS = ("0123456789", "abcdefghijklmnopqrstuvwxyz", "ABCDEFGHIJKLMNOPQRSTUVWXYZ")
_POINTER = "(?:/(?:[^~/]|~[01])*)*"
# RFC 6570, section 2; the operators that it reserves are left out.
_VARIABLE = r"(?:[a-zA-Z0-9_]|%[0-9a-fA-F]{2})(?:\.?(?:[a-zA-Z0-9_]|%[0-9a-fA-F]{2}))*(?::[1-9][0-9]{0,3}|\*)?"
_TEMPLATE = (
    rf"(?:[!#$&(-;=?-\[\]_a-z~{_UCS}{_PRIVATE}]|%[0-9a-fA-F]{{2}}|\{{[+#./;?&]?{_VARIABLE}(?:,{_VARIABLE})*\}})*"
)


def _regex(depth: int = 3) -> str:
    """ECMA-262, section 22.2.1, with and without its `u` flag. Left out are look-arounds, back references, properties,
    names of groups, two counts of more than one digit each, ranges of other characters than ASCII letters or digits,
    and groups below `depth`."""
    hexadecimal = "[0-9a-fA-F]"
    escape = rf"\\(?:[dDwWsStnrvf\^$\\.*+?()\[\]{{}}|/]|x{hexadecimal}{{2}}|u(?:[0-9a-ce-fA-CE-F]{hexadecimal}{{3}}))"
    ranges = "|".join(f"{low}-[{low}-{row[-1]}]" for row in _ROWS for low in row)
    chars = rf"\[\^?-?(?:[^\\\]\[\^\-\n\r\u2028\u2029]|{escape}|{ranges})+-?\]"
    pairs = "|".join(f"{low},(?:[{low}-9]|[1-9][0-9]+)" for low in "0123456789")
    count = rf"(?:[*+?]|\{{(?:[0-9]{{1,3}},?|{pairs})\}})\??"
    atom = rf"[^\\\^$.*+?()\[\]{{}}|\n\r\u2028\u2029]|\.|{escape}|{chars}"
    terms = f"(?:(?:{atom})(?:{count})?|[\\^$|])*"
    for _ in range(depth):
        terms = rf"(?:(?:{atom}|\((?:\?:)?{terms}\))(?:{count})?|[\^$|])*"
    return terms


FORMATS = {
    "date": _DATE,
    "time": _TIME,
    "date-time": f"{_DATE}[Tt]{_TIME}",
    "duration": _DURATION,
    "uuid": _UUID,
    "ipv4": _IPV4,
    "ipv6": _IPV6,
    "hostname": _HOST,
    "email": _EMAIL,
    "uri": _URI["absolute"],
    "uri-reference": f"(?:{_URI['absolute']}|{_URI['relative']})",
    "iri": _IRI["absolute"],
    "iri-reference": f"(?:{_IRI['absolute']}|{_IRI['relative']})",
    "json-pointer": _POINTER,
    "\0base64": "(?:[a-zA-Z0-9+/]{4})*(?:[a-zA-Z0-9+/]{2}==|[a-zA-Z0-9+/]{3}=)?",  # RFC 4648, section 4
    "uri-template": _TEMPLATE,
    "regex": _regex(),
    "relative-json-pointer": f"(?:0|[1-9][0-9]*)(?:#|{_POINTER})",
}
# For mode "generate": formats with any number of digits, limited to as many as programs read.
NARROW_FORMATS = {name: FORMATS[name].replace("[0-9]+", "[0-9]{1,9}") for name in ("time", "date-time", "duration")}
# Standard formats without support. Any other name is a custom format, which doesn't affect validity.
REFUSED = ("idn-email", "idn-hostname")
