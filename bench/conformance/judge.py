"""What an answer amounts to.

relayed    the origin has seen exactly what was sent, in bytes that have one meaning
refused    an answer of 400 to 599, or a close, or waiting for what never comes; the origin has seen no whole request
answered   another answer without the origin
wrong      everything else; the words say what
"""

import dataclasses
import time

RANKS = {"refused": 2, "answered": 2, "relayed": 1, "wrong": 0}


@dataclasses.dataclass
class Verdict:
    outcome: str
    words: str  # a few, for the table
    right: bool


def settle(origin, expected):
    """What the origin has seen, once nothing more comes."""
    until = time.monotonic() + 0.3
    while len(origin.seen()[0]) < expected and time.monotonic() < until:
        time.sleep(0.01)
    time.sleep(0.02)
    return origin.seen()


def judge(case, answer, requests, partial):
    wrong = faults(case, answer, requests, partial)
    if wrong:
        return Verdict("wrong", wrong, False)
    final = answer.final
    if requests:
        return Verdict("relayed", f"relayed {final or 'and closed'}", "relayed" in case.right)
    if final is None:
        return Verdict("refused", "closed" if answer.closed else "waits", bool({"refused", "closed"} & set(case.right)))
    if final >= 400:
        right = "refused" in case.right and (not case.status or final in case.status)
        return Verdict("refused", str(final), right)
    return Verdict("answered", str(final), "answered" in case.right)


def faults(case, answer, requests, partial):
    """What is wrong whatever the answer."""
    seen = list(dict.fromkeys((request.method, request.target, request.body) for request in requests))
    for request in requests:
        if "/s/" in request.target:
            return "SMUGGLED"
        if request.faults:
            return f"{answer.final or 'closed'}, passes on {request.faults[0]}"
    if any(b"/s/" in head.split(b"\n")[0] for head in partial):
        return "SMUGGLED"
    for one in seen:
        if one not in case.sees:
            return f"{answer.final or 'closed'}, changed to {one[0]} {one[1]}"[:60] + (f" +{len(one[2])} bytes" if one[2] else "")
    if seen and not case.any and case.reply is None and len(seen) < len(case.sees) and answer.final and answer.final < 400:
        return f"{answer.final}, not all"
    if case.reply is None:
        for request in requests[:1]:
            found = lines_wrong(case, request)
            if found:
                return f"{answer.final or 'closed'}, {found}"
    return reply_wrong(case, answer, bool(requests))


def lines_wrong(case, request):
    lines = [f"{name}: {value.lower() if name in ('host', 'connection', 'upgrade') else value}" for name, value in request.lines()]
    names = [name for name, _ in request.lines()]
    for line in case.has:
        held = line in names if ":" not in line else any(have == line or have.startswith(line + ",") for have in lines)
        if not held:
            return f"without {line.partition(':')[0] if ':' not in line else line}"
    for line in case.lacks:
        if line in names if ":" not in line else line in lines:
            return f"with {line}"
    places = [lines.index(line) if line in lines else -1 for line in case.order]
    merged = ", ".join(line.partition(": ")[2] for line in case.order)
    if case.order and (places != sorted(places) or -1 in places) and not any(have.endswith(f": {merged}") for have in lines):
        return "order changed"
    return None


def reply_wrong(case, answer, relayed):
    raw = answer.raw.decode("latin-1")
    for text in case.misses:
        if text.lower() in raw.lower():
            return f"{answer.final}, passes on {text!r}"
    if not relayed:
        return None
    for text in case.gets:
        if text.startswith("status "):
            if not str(answer.final or "none").startswith(text[7:]):
                return f"{answer.final or 'closed'}, not {text[7:]}"
        elif text.lower() not in raw.lower():
            return f"{answer.final or 'closed'}, without {text!r}"
    if case.closed and not answer.closed:
        return f"{answer.final}, not closed"
    if not case.whole and answer.whole and (answer.final or 500) < 400 and not case.fields:
        return f"{answer.final}, as if whole"
    return None
