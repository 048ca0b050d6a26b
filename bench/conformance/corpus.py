"""The cases: what is sent, and what is right."""

import dataclasses
import pathlib
import re
import tomllib

HOST = "Host: a.example\r\n"


@dataclasses.dataclass
class Case:
    id: str
    group: str
    what: str
    rule: str
    send: str = ""
    then: str = ""  # sent once something has come, or after a while
    fields: list = None  # of HTTP/2
    data: list = dataclasses.field(default_factory=list)
    trailers: list = None
    ends: bool = False
    right: list = dataclasses.field(default_factory=lambda: ["refused"])
    status: list = None
    sees: list = None
    any: bool = False
    part: bool = False  # the fault is in the body, so that a part of the request may have gone on
    has: list = dataclasses.field(default_factory=list)
    lacks: list = dataclasses.field(default_factory=list)
    order: list = dataclasses.field(default_factory=list)
    reply: str = None
    closes: bool = False
    gets: list = dataclasses.field(default_factory=list)
    misses: list = dataclasses.field(default_factory=list)
    closed: bool = False  # the connection must be closed at the end
    whole: bool = True  # false: the client must be able to tell that the reply is not
    kind: str = "malformed"
    known: str = None  # why larder falls short here

    def __post_init__(self):
        hidden = f"GET /s/{self.id} HTTP/1.1\r\n{HOST}\r\n"

        def fill(text):
            text = text.replace("{ID}", self.id).replace("{H}", HOST)
            text = text.replace("{L:S}", str(len(hidden))).replace("{X:S}", f"{len(hidden):x}").replace("{S}", hidden)
            text = re.sub(r"\{F:(\d+)\}", lambda found: "a" * int(found[1]), text)
            return re.sub(r"\{R:(\d+):([^}]*)\}", lambda found: found[2] * int(found[1]), text, flags=re.S)

        def deep(value):
            if isinstance(value, str):
                return fill(value)
            return [deep(item) for item in value] if isinstance(value, list) else value

        for field in dataclasses.fields(self):
            if field.name not in ("id", "what"):
                setattr(self, field.name, deep(getattr(self, field.name)))
        if self.sees is None:
            self.sees = [f"GET /c/{self.id}"]
        self.sees = [tuple((line + "  ").split(" ", 2)) for line in self.sees]
        self.sees = [(method, target, body[:-2] if body.endswith("  ") else body.rstrip(" "))
                     for method, target, body in self.sees]


def read(folder=pathlib.Path(__file__).parent):
    cases = []
    for name in ("requests", "relaying", "http2"):
        table = tomllib.loads((folder / f"{name}.toml").read_text())
        cases += [Case(**case) for case in table["case"]]
    names = [case.id for case in cases]
    double = {name for name in names if names.count(name) > 1}
    if double:
        raise ValueError(f"two cases have the same name: {double}")
    return cases
