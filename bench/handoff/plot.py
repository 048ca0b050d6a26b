"""The crossover plot: cost by reply size, both axes logarithmic, as SVG that stands alone."""

import html
import math

COLOURS = {"cookie": "#0b6e4f", "cookie-slow": "#63b995", "repair": "#1f5fa8", "relay": "#c1440e", "splice": "#e39a3b",
           "haproxy": "#7b2d8b", "haproxy-splice": "#b583c2", "nginx": "#555555"}
BYTES = {"1KB": 1 << 10, "16KB": 1 << 14, "128KB": 1 << 17, "1MB": 1 << 20, "10MB": 10 << 20}
WIDTH, HEIGHT, LEFT, TOP, RIGHT, BOTTOM, GAP = 480, 360, 62, 44, 108, 46, 24


def panel(cells, key, title, at):
    cells = [c for c in cells if c["system"] in COLOURS and c[key] > 0]
    if not cells:
        return []
    sizes = [s for s in BYTES if any(c["size"] == s for c in cells)]
    low = 10 ** math.floor(math.log10(min(c[key] for c in cells)))
    high = 10 ** math.ceil(math.log10(max(c[key] for c in cells)))
    first, last = math.log(BYTES[sizes[0]]), math.log(BYTES[sizes[-1]]) + 1e-9
    wide, tall = WIDTH - LEFT - RIGHT, HEIGHT - TOP - BOTTOM
    x = lambda size: LEFT + at[0] + (math.log(BYTES[size]) - first) / (last - first) * wide
    y = lambda value: TOP + at[1] + (1 - math.log(value / low) / math.log(high / low)) * tall
    out = [f'<text x="{LEFT + at[0]}" y="{TOP + at[1] - 14}" font-weight="600">{html.escape(title)}</text>']
    value = low
    while value <= high * 1.01:
        out.append(f'<line x1="{LEFT + at[0]}" x2="{LEFT + at[0] + wide}" y1="{y(value):.1f}" y2="{y(value):.1f}" stroke="#ddd"/>'
                   f'<text x="{LEFT + at[0] - 6}" y="{y(value) + 4:.1f}" text-anchor="end" fill="#555">{value:,.0f}</text>')
        value *= 10
    for size in sizes:
        out.append(f'<text x="{x(size):.1f}" y="{TOP + at[1] + tall + 18}" text-anchor="middle" fill="#555">{size}</text>')
    ends = []
    for name in dict.fromkeys(c["system"] for c in cells):
        points = sorted(((BYTES[c["size"]], c["size"], c[key]) for c in cells if c["system"] == name))
        path = " ".join(f"{x(size):.1f},{y(value):.1f}" for _, size, value in points)
        out.append(f'<polyline points="{path}" fill="none" stroke="{COLOURS[name]}" stroke-width="2"/>')
        out += [f'<circle cx="{x(size):.1f}" cy="{y(value):.1f}" r="3" fill="{COLOURS[name]}"><title>{name} {size}: {value:,.1f} us'
                f'</title></circle>' for _, size, value in points]
        ends.append([y(points[-1][2]), x(points[-1][1]), name])
    ends.sort()
    for before, after in zip(ends, ends[1:]):
        after[0] = max(after[0], before[0] + 13)
    out += [f'<text x="{ex + 8:.1f}" y="{ey + 4:.1f}" fill="{COLOURS[name]}">{name}</text>' for ey, ex, name in ends]
    return out


def crossover(cells, key="front_us"):
    """Front-end and all hosts, one request a connection and kept alive."""
    body = []
    for row, keep in enumerate([False, True]):
        some = [c for c in cells if c["keep"] == keep]
        manner = "kept alive" if keep else "one request a connection"
        body += panel(some, key, f"front-end CPU us/request, {manner}", (0, row * (HEIGHT + GAP)))
        body += panel(some, "total_us", f"CPU us/request of all hosts, {manner}", (WIDTH + GAP, row * (HEIGHT + GAP)))
    width, height = 2 * WIDTH + GAP, 2 * HEIGHT + GAP
    return (f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" font-family="system-ui, sans-serif" '
            f'font-size="12"><rect width="{width}" height="{height}" fill="#fff"/>\n' + "\n".join(body) + "\n</svg>\n")
