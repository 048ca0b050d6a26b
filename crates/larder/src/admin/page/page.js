// The live page: asks /live once a second and draws what has changed since. Text goes in as text, never as markup.
"use strict";

const PERIOD_MS = 1000;
const KEPT = 120;
const id = (name) => document.getElementById(name);
const history = { requests: [], hits: [], p99: [] };
let before = null;
let routes = "";

/** An element with attributes, and children that are elements or texts. */
function make(tag, attributes = {}, ...children) {
  const element = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) {
    if (name === "onclick") element.addEventListener("click", value);
    else if (value !== undefined) element.setAttribute(name, value);
  }
  element.append(...children.map((child) => child ?? "–"));
  return element;
}

const number = (value, digits = 0) =>
  value === null || value === undefined || Number.isNaN(value) ? "–"
    : value.toLocaleString("en", { minimumFractionDigits: digits, maximumFractionDigits: digits });
const percent = (value) => value === null || value === undefined || Number.isNaN(value) ? "–" : `${(value * 100).toFixed(1)} %`;
const rate = (value) => number(value, value < 10 ? 1 : 0);

function bytes(value) {
  if (!value) return "–";
  const units = ["B", "KB", "MB", "GB", "TB", "PB"];
  const step = Math.min(Math.floor(Math.log10(value) / 3), units.length - 1);
  return `${number(value / 1000 ** step, step > 0 ? 1 : 0)} ${units[step]}`;
}

function time(seconds) {
  if (seconds === null) return "–";
  return seconds < 0.001 ? `${number(seconds * 1e6)} µs` : seconds < 1 ? `${number(seconds * 1e3, 1)} ms` : `${number(seconds, 2)} s`;
}

const sum = (values) => values.reduce((all, one) => all + one, 0);
const ended = (node) => sum(node.requests) + node.aborted;

/** What counters did since the last time; nothing after another process took over and began at zero. */
function since(now) {
  const same = before && before.reloads.generation === now.reloads.generation && before.status.uptime_s <= now.status.uptime_s;
  const seconds = same ? now.status.uptime_s - before.status.uptime_s : 0;
  const old = same ? new Map(before.nodes.map((node) => [node.name, node])) : new Map();
  const counts = now.latency.counts.map((count, at) => count - (same ? before.latency.counts[at] : count));
  return { seconds, old, counts, decisions: same ? before.decisions : now.decisions };
}

/** The time that this share of requests stayed below, by the bounds of a histogram. */
function quantile(latency, counts, share) {
  const all = sum(counts);
  if (all <= 0) return null;
  let left = all * share;
  for (let at = 0; at < counts.length; at += 1) {
    if (left <= counts[at]) {
      const upper = latency.bounds_s[at] ?? latency.bounds_s.at(-1);
      const lower = at > 0 ? latency.bounds_s[at - 1] : 0;
      return lower + (upper - lower) * (left / counts[at]);
    }
    left -= counts[at];
  }
  return latency.bounds_s.at(-1);
}

function line(values) {
  const known = values.filter((value) => value !== null);
  const svg = document.createElementNS("http://www.w3.org/2000/svg", "svg");
  svg.setAttribute("viewBox", `0 0 ${KEPT} 20`);
  svg.setAttribute("preserveAspectRatio", "none");
  svg.setAttribute("aria-hidden", "true");
  const most = Math.max(...known, 1e-9);
  const points = values.map((value, at) => (value === null ? null : [KEPT - values.length + at, 19 - (value / most) * 18]));
  const path = document.createElementNS("http://www.w3.org/2000/svg", "path");
  let drawn = "";
  points.forEach((point, at) => {
    if (point) drawn += `${at > 0 && points[at - 1] ? "L" : "M"}${point[0]} ${point[1].toFixed(2)}`;
  });
  path.setAttribute("d", drawn || "M0 0");
  svg.append(path);
  return svg;
}

function remember(list, value) {
  list.push(value === null || Number.isNaN(value) ? null : value);
  if (list.length > KEPT) list.shift();
}

function figures(now, gone) {
  const per = (value) => (gone.seconds > 0 ? value / gone.seconds : null);
  const moved = (of) => sum(now.nodes.map((node) => of(node) - (gone.old.has(node.name) ? of(gone.old.get(node.name)) : of(node))));
  const requests = per(sum(gone.counts));
  const [hits, misses] = [moved((node) => node.hits), moved((node) => node.misses)];
  const hitRatio = hits + misses > 0 ? hits / (hits + misses) : null;
  const p99 = quantile(now.latency, gone.counts, 0.99);
  const up = now.nodes.filter((node) => node.state === "up");
  const served = up.map((node) => ended(node) - (gone.old.has(node.name) ? ended(gone.old.get(node.name)) : ended(node)));
  const imbalance = sum(served) > 0 ? (Math.max(...served) * served.length) / sum(served) : null;
  remember(history.requests, requests);
  remember(history.hits, hitRatio);
  remember(history.p99, p99);
  const one = (name, value, ...rest) => make("div", { class: "figure", "data-figure": name }, make("b", {}, value), make("span", {}, name), ...rest);
  const limit = now.status.admission_limit;
  id("figures").replaceChildren(
    one("requests/s", rate(requests), line(history.requests)),
    one("hit ratio", percent(hitRatio), line(history.hits)),
    one("p99", time(p99), line(history.p99)),
    one("p50", time(quantile(now.latency, gone.counts, 0.5))),
    one("in flight" + (limit === null ? "" : `, of ${number(limit)}`), number(now.status.outstanding)),
    one(`waiting, of ${number(now.status.queue_max)}`, number(now.status.queued)),
    one("imbalance", number(imbalance, 2)),
    one("targets known", number(now.status.targets)),
    one("client connections", number(now.status.client_connections)),
  );
}

function nodes(now, gone) {
  const most = Math.max(...now.nodes.map((node) => node.load), 1);
  const memory = new Map((now.shadow?.memory ?? []).map((row) => [row.node, row.bytes]));
  const body = id("nodes").tBodies[0];
  const before = new Map([...body.rows].map((row) => [row.dataset.node, row]));
  const rows = now.nodes.map((node) => {
    const old = gone.old.get(node.name);
    const per = old && gone.seconds > 0 ? (ended(node) - ended(old)) / gone.seconds : null;
    const told = node.hits + node.misses;
    const state = node.state === "up" && !node.healthy ? "unhealthy" : node.state;
    const load = make("i");
    load.style.width = `${(node.load / most) * 100}%`;
    const button = (word, title, act) => make("button", { type: "button", title, "data-act": word, onclick: act }, word);
    const drained = node.state === "draining";
    const cells = [
      make("td", { title: node.resolved }, node.name),
      make("td", {}, make("span", { class: `state ${state}` }, state + (node.standby ? ", standby" : node.backup ? ", backup" : "") + (node.joining ? ", joining" : ""))),
      make("td", { class: "bar", "data-name": "load" }, load, make("span", {}, number(node.load))),
      make("td", { class: "number", "data-name": "requests/s" }, rate(per)),
      make("td", { class: "number", "data-name": "hit ratio" }, told > 0 ? percent(node.hits / told) : "–"),
      make("td", { class: "number", "data-name": "errors" }, number(node.requests[4] + node.aborted)),
      make("td", { class: "number", "data-name": "memory" }, bytes(memory.get(node.name) || node.cache_bytes)),
      make("td", { class: "number", "data-name": "weight" }, number(node.weight, node.weight % 1 ? 2 : 0)),
    ];
    const row = before.get(node.name) ?? make("tr", { "data-node": node.name });
    const acts = row.lastElementChild;
    const offered = `${drained} ${node.weight}`;
    if (acts?.dataset.offered === offered) {
      // Buttons stay: one that is pressed down, or has the focus, must not be another before it is let go.
      cells.forEach((cell, at) => row.cells[at].replaceWith(cell));
    } else {
      row.replaceChildren(...cells, make("td", { "data-offered": offered },
        drained ? button("undrain", "send requests to this node again", () => change(`Undrain node ${node.name}? It gets requests again.`, `nodes/${encodeURIComponent(node.name)}/undrain`))
          : button("drain", "send no new requests to this node", () => change(`Drain node ${node.name}? It finishes its requests and gets no new ones. Its targets move to other nodes.`, `nodes/${encodeURIComponent(node.name)}/drain`)),
        " ",
        button("weight", "change its share of the load", () => change(`Weight of node ${node.name}; the default is 1.`, `nodes/${encodeURIComponent(node.name)}/weight`, node.weight))));
    }
    return row;
  });
  if (rows.length !== body.rows.length || rows.some((row, at) => row !== body.rows[at])) body.replaceChildren(...rows);
}

function counts(table, rows) {
  const all = sum(rows.map(([, count]) => count)) || 1;
  id(table).tBodies[0].replaceChildren(...rows.sort((a, b) => b[1] - a[1]).map(([name, count]) => {
    const part = make("i");
    part.style.width = `${(count / all) * 100}%`;
    return make("tr", {}, make("td", {}, name), make("td", { class: "number" }, number(count)), make("td", { class: "bar" }, part, make("span", {}, percent(count / all))));
  }));
}

function hottest(now) {
  id("hottest").tBodies[0].replaceChildren(...now.hottest.map((row) => make("tr", {},
    make("td", { class: "target", title: `${row.id}, route ${row.route}` }, row.target),
    make("td", { class: "number" }, rate(row.requests_per_s)),
    make("td", { class: "number" }, percent(row.share)),
    make("td", {}, ...row.servers.map((server) => make("span", { class: "chip" }, server))))));
}

function shadow(now) {
  const status = now.shadow;
  id("shadow").hidden = !status;
  if (!status) {
    id("shadow-note").textContent = "Shadow mode is off. Set [switch.shadow] policies = \"all\" in the config to compare all policies on the live requests.";
    return;
  }
  const unknown = status.memory.filter((row) => row.from === "unknown").map((row) => row.node);
  const parts = [
    `Simulated results of each policy for the requests of the last ${status.lately_s / 60} minutes.`,
    status.one_in === 1 ? "All targets are included;" : `One target in ${number(status.one_in)} is included;`,
    `the shadow uses ${number(status.state_mb, 1)} MB of memory.`,
  ];
  if (status.dropped > 0) parts.push(`${number(status.dropped)} requests were omitted, because the shadow could not keep up.`);
  if (unknown.length > 0) parts.push(`Nodes of unknown memory, which count as without hits: ${unknown.join(", ")}.`);
  id("shadow-note").textContent = parts.join(" ");
  const row = (name, policy) => {
    const { hit_ratio: hits, imbalance, load_imbalance: load, missed_bytes: missed } = policy.lately;
    const bar = make("i");
    bar.style.width = `${(hits ?? 0) * 100}%`;
    return make("tr", { "data-policy": name, class: policy.runs ? "runs" : undefined },
      make("td", {}, name), make("td", { class: "bar" }, bar, make("span", {}, percent(hits))),
      make("td", { class: "number" }, number(imbalance, 2)), make("td", { class: "number" }, number(load, 2)),
      make("td", { class: "number" }, bytes(missed)));
  };
  const others = [...status.policies].sort((a, b) => (b.lately.hit_ratio ?? 0) - (a.lately.hit_ratio ?? 0));
  id("shadow").tBodies[0].replaceChildren(
    row(`${status.live.policy}, live`, status.live),
    ...others.map((policy) => row(policy.policy + (policy.runs ? ", in the shadow" : ""), policy)));
}

function draw(now) {
  const gone = since(now);
  const { status, reloads } = now;
  id("identity").textContent = `${status.policy}, ${status.nodes_up} of ${status.nodes} nodes up, up ${number(status.uptime_s / 3600, 1)} h, process ${reloads.generation}`;
  figures(now, gone);
  nodes(now, gone);
  hottest(now);
  counts("decisions", Object.entries(now.decisions));
  id("delivered").hidden = now.deliveries.length === 0;
  counts("deliveries", now.deliveries.map((row) => [`${row.mechanism}: ${row.why}`, row.count]));
  id("failed").hidden = Object.keys(now.failures).length === 0;
  counts("failures", Object.entries(now.failures));
  shadow(now);
  id("footing").textContent = `Counts start with the process. Updated every ${PERIOD_MS / 1000} s.`;
  before = now;
}

/** Takes the answer to the question that is open; an event of one before it, which may come late, is no answer. */
let answer = null;
function answered(said) {
  const taken = answer;
  answer = null;
  taken?.(said);
}
id("confirm").addEventListener("submit", (event) => answered(event.submitter?.value));
id("confirm").addEventListener("close", (event) => { if (!event.target.open) answered("no"); });

/** Asks whether it is meant, and then does it. */
async function change(question, path, weight) {
  const dialog = id("confirm");
  if (dialog.open) return;
  id("question").textContent = question;
  id("weight-label").hidden = weight === undefined;
  if (weight !== undefined) id("weight").value = weight;
  dialog.showModal();
  if (await new Promise((resolve) => { answer = resolve; }) !== "yes") return;
  const target = weight === undefined ? path : `${path}?value=${encodeURIComponent(id("weight").value)}`;
  try {
    const reply = await fetch(target, { method: "POST", headers: { "larder-admin": "1" }, credentials: "omit" });
    const said = await reply.json();
    trouble(reply.ok ? null : `${said.error}: ${said.hint}`, true);
  } catch (error) {
    trouble(`The switch does not answer: ${error.message}`, true);
  }
  await ask();
}

let saidUntil = 0;
function trouble(text, byHand = false) {
  if (byHand) saidUntil = text ? Date.now() + 10_000 : 0;
  else if (!text && Date.now() < saidUntil) return;
  id("trouble").textContent = text ?? "";
  id("trouble").hidden = !text;
}

async function json(path) {
  const reply = await fetch(path, { credentials: "omit", cache: "no-store" });
  if (!reply.ok) throw new Error(`${path}: status ${reply.status}`);
  return reply.json();
}

async function choices() {
  const [known, all] = await Promise.all([json("routes"), json("policies")]);
  const text = JSON.stringify(known.map((route) => [route.name, route.policy]));
  if (text === routes) return;
  routes = text;
  const form = id("policy");
  const chosen = form.elements.route.value;
  form.elements.route.replaceChildren(...known.map((route) => make("option", { value: route.name }, `${route.name} (${route.policy})`)));
  if (known.some((route) => route.name === chosen)) form.elements.route.value = chosen;
  if (form.elements.policy.options.length === 0) {
    form.elements.policy.replaceChildren(...all.map((policy) => make("option", { value: policy.name, title: policy.summary }, policy.name)));
  }
  const reload = await json("reload");
  const byHand = Object.entries(reload.policies ?? {}).map(([route, policy]) => `${route}: ${policy}`);
  id("policy-note").textContent = byHand.length > 0
    ? `Set here until the next reload, which restores the config: ${byHand.join(", ")}.`
    : "A change loses no request. It lasts until the next reload, which restores the config.";
}

let asking = false;
async function ask() {
  if (asking) return;
  asking = true;
  try {
    draw(await json("live"));
    await choices();
    trouble(null);
  } catch (error) {
    trouble(`The switch does not answer (${error.message}); the values are old.`);
  }
  asking = false;
}

id("policy").addEventListener("submit", (event) => {
  event.preventDefault();
  const { route, policy } = event.target.elements;
  change(`Change the policy of route ${route.value} to ${policy.value}? A new process takes over. Targets that the new policy places at other nodes are read again.`,
    `policy?route=${encodeURIComponent(route.value)}&value=${encodeURIComponent(policy.value)}`);
});
ask();
setInterval(() => { if (!document.hidden) ask(); }, PERIOD_MS);
