"""The answers beside one another."""

import judge

NAMES = {"larder": "larder switch", "node": "larder node", "haproxy": "HAProxy", "nginx": "nginx", "envoy": "Envoy"}
PEERS = ["haproxy", "nginx", "envoy"]
BEGIN, END = "<!-- begin: bench/conformance/run.py -->", "<!-- end: bench/conformance/run.py -->"


def strictest(case, results):
    ranks = [judge.RANKS[results[name][case.id].outcome] for name in PEERS if case.id in results.get(name, {})]
    return max(ranks, default=0)


def is_laxer(case, name, results):
    """Whether a server passes on what another one refuses."""
    verdict = results[name].get(case.id)
    return verdict is not None and case.kind == "malformed" and judge.RANKS[verdict.outcome] < strictest(case, results)


def is_bad(case, name, results):
    verdict = results[name].get(case.id)
    return verdict is not None and not case.known and (not verdict.right or is_laxer(case, name, results))


def mark(case, name, results):
    verdict = results[name].get(case.id)
    if verdict is None:
        return ""
    if not verdict.right:
        return f"**{verdict.words}**"
    return f"_{verdict.words}_" if is_laxer(case, name, results) else verdict.words


def groups(cases):
    found = {}
    for case in cases:
        found.setdefault(case.group, []).append(case)
    return found


def text(cases, results):
    lines = []
    for group, members in groups(cases).items():
        lines.append(f"\n{group}")
        for case in members:
            cells = [f"{mark(case, name, results):32.32}" for name in results]
            flag = "!" if any(is_bad(case, name, results) for name in ("larder", "node") if name in results) else " "
            lines.append(f"{flag} {case.id:30} {' '.join(cells)}")
    lines.append("\n" + "  ".join(f"{NAMES[name]}: {summary(cases, name, results)}" for name in results))
    return "\n".join(lines)


def summary(cases, name, results):
    held = [case for case in cases if case.id in results[name]]
    wrong = sum(not results[name][case.id].right for case in held)
    laxer = sum(results[name][case.id].right and is_laxer(case, name, results) for case in held)
    return f"{len(held) - wrong} of {len(held)} right, {laxer} laxer"


def markdown(cases, results, versions):
    names = list(results)
    out = ["| | " + " | ".join(NAMES[name] for name in names) + " |", "|---" * (len(names) + 1) + "|"]
    rows = [("version", lambda name: versions[name].replace("|", " "))]
    rows.append(("cases", lambda name: str(len(results[name]))))
    rows.append(("wrong", lambda name: str(sum(not verdict.right for verdict in results[name].values()))))
    rows.append(("of these, smuggled", lambda name: str(sum(verdict.words == "SMUGGLED" for verdict in results[name].values()))))
    rows.append(("right, but laxer than another",
                 lambda name: str(sum(case.id in results[name] and results[name][case.id].right and is_laxer(case, name, results)
                                      for case in cases))))
    out += [f"| {title} | " + " | ".join(cell(name) for name in names) + " |" for title, cell in rows]
    for group, members in groups(cases).items():
        out += ["", f"### {group[0].upper() + group[1:]}", "",
                "| case | what | rule | " + " | ".join(NAMES[name] for name in names) + " |",
                "|---" * (len(names) + 3) + "|"]
        for case in members:
            cells = [mark(case, name, results) for name in names]
            cells = [cell.replace("|", "\\|").replace("\r", "\\r").replace("\n", "\\n") for cell in cells]
            what = f"{case.what} (larder: {case.known})" if case.known else case.what
            out.append(f"| {case.id} | {what} | {case.rule} | " + " | ".join(cells) + " |")
    return "\n".join(out)


def between(path, begin, end, text):
    page = path.read_text()
    if begin not in page or end not in page:
        raise ValueError(f"{path} has no marks {begin} and {end}")
    before, _, rest = page.partition(begin)
    _, _, after = rest.partition(end)
    path.write_text(f"{before}{begin}\n\n{text}\n\n{end}{after}")


def into(path, cases, results, versions):
    between(path, BEGIN, END, markdown(cases, results, versions))
