// Trajectories of a run, in the viewer's page or in a report. Data comes from
// the server, or from blocks in the page itself if it was written as one file;
// its fields are those of launch/reports/schema.py. Everything that a policy or a
// tool has written becomes text, and never part of the page's own source.
"use strict";

const POLL_MS = 3000;
const ROWS = 200; // that the list shows before a click asks for more
const LONG = 1200; // characters of a message that are shown without a click

// A gap in nats, from likely noise to a factor of two; a probability below 82,
// 50 and 20 %; an age in updates; an advantage in deviations of its task.
const STEPS = { gap: [0.05, 0.2, 0.7], unsure: [0.2, 0.7, 1.6], age: [1, 4, 16], advantage: [0.01, 0.5, 1.5] };

const FILTERS = {
  task: { label: "task", of: (t) => t.task },
  played: { label: "played in", of: (t) => t.played },
  status: { label: "status", of: (t) => t.status },
  outcome: { label: "outcome", of: (t) => (t.is_success ? "success" : "failure") },
};
const ORDERS = {
  newest: { label: "newest first", by: null },
  reward: { label: "highest reward", by: (a, b) => b.reward - a.reward },
  gain: {
    label: "best of its group",
    by: (a, b) => b.reward - b.group_mean - (a.reward - a.group_mean),
  },
  turns: { label: "most turns", by: (a, b) => b.num_turns - a.num_turns },
  tokens: { label: "most tokens", by: (a, b) => b.num_tokens - a.num_tokens },
};
const COLOURS = {
  text: "messages",
  trained: "tokens: sampled or read",
  probability: "tokens: probability",
  sampler: "tokens: sampler against temperature 1",
  version: "tokens: age of the weights",
  learner: "tokens: learner against sampler",
  advantage: "tokens: advantage",
};
const UNTRAINED = "The learner computed nothing here: the trajectory was not trained on, or its advantage was 0.";
const NEEDS_LEARNER = ["learner", "advantage"]; // what the learner computed

let listing = { trajectories: [], problems: [], tag: "" };
let shownRows = ROWS;
let colour = "text";

// ---- data ------------------------------------------------------------------

const embedded = new Map(
  [...document.querySelectorAll("script[data-api]")].map((e) => [e.dataset.api, e]),
);
const isOneFile = embedded.size > 0;
const isReport = isOneFile && !embedded.has("now");

async function ask(name) {
  if (!isOneFile) {
    const answer = await fetch(`api/${name}`);
    const body = await answer.json();
    if (!answer.ok) throw new Error(body.message);
    return body;
  }
  const block = embedded.get(name);
  if (!block) throw new Error(`${decodeURIComponent(name)} is not in this file`);
  const bytes = Uint8Array.from(atob(block.textContent), (c) => c.charCodeAt(0));
  const plain = new Blob([bytes]).stream().pipeThrough(new DecompressionStream("gzip"));
  return new Response(plain).json();
}

async function refresh() {
  let state = null;
  try {
    if (!isReport) state = await ask("now");
    const newest = await ask("trajectories");
    const changed = newest.tag !== listing.tag;
    listing = newest;
    say("trouble", listing.problems.join("; "));
    if (changed && view().name === "list") showList();
  } catch (error) {
    say("trouble", `The server does not answer, and is asked again: ${error.message}`);
    return;
  }
  if (state) showState(state);
}

function say(id, text) {
  const place = document.getElementById(id);
  if (!place) return;
  if (place.textContent !== text) place.textContent = text;
  if (id === "trouble") place.hidden = !text;
}

// ---- elements --------------------------------------------------------------

function element(name, attributes = {}, ...children) {
  const node = document.createElement(name);
  for (const [key, value] of Object.entries(attributes)) {
    if (value === undefined || value === false) continue;
    if (key.startsWith("on")) node.addEventListener(key.slice(2), value);
    else node.setAttribute(key, value === true ? "" : value);
  }
  node.append(...children.filter((child) => child !== null && child !== undefined));
  return node;
}

const chip = (text, kind = "") => element("li", { class: `chip ${kind}` }, text);
const plural = (count, word) => `${count} ${word}${count === 1 ? "" : "s"}`;
const fixed = (value) => value.toFixed(2);
const signed = (value) => `${value < 0 ? "−" : "+"}${Math.abs(value).toFixed(2)}`;
const range = (values) => [...new Set([Math.min(...values), Math.max(...values)].map(signed))].join(" to ");
const percent = (value) => `${Math.round(100 * value)}\u00a0%`;

function duration(seconds) {
  if (seconds < 90) return `${Math.round(seconds)} s`;
  if (seconds < 5400) return `${Math.round(seconds / 60)} min`;
  return `${Math.round(seconds / 3600)} h`;
}

function show(...children) {
  document.getElementById("main").replaceChildren(...children);
  say("hint", "");
}

// ---- what runs now ---------------------------------------------------------

function showState(state) {
  document.title = state.name;
  say("name", state.name);
  const parts = [`update ${state.update} of ${state.updates}`];
  if (state.is_finished) parts.push("finished");
  else if (state.age_s !== null) parts.push(`${duration(state.age_s)} ago`);
  const rates = Object.entries(state.success).map(([task, rate]) => `${task} ${percent(rate)}`);
  if (rates.length) parts.push(`success ${state.success_of}: ${rates.join(", ")}`);
  if (state.num_faults) parts.push(plural(state.num_faults, "fault"));
  if (!state.is_finished) {
    for (const task of state.stopped) parts.push(`no groups of ${task} start: its environment fails or hangs`);
    parts.push(...state.alarms);
  }
  say("state", parts.join(" · "));
}

// ---- the list --------------------------------------------------------------

function view() {
  const [path, query = ""] = location.hash.slice(1).split("?");
  const [, name = "", id = ""] = path.split("/");
  const names = { t: "trajectory", g: "group", curves: "curves" };
  return {
    name: names[name] || "list",
    id: decodeURIComponent(id),
    query: new URLSearchParams(query),
  };
}

function chosen(query) {
  const first = query.get("from") === null ? -Infinity : Number(query.get("from"));
  const last = query.get("to") === null ? Infinity : Number(query.get("to"));
  const isBounded = first > -Infinity || last < Infinity;
  const kept = listing.trajectories.filter(
    (t) =>
      Object.entries(FILTERS).every(
        ([key, { of }]) => !query.get(key) || of(t) === query.get(key),
      ) &&
      (!isBounded || (t.update !== null && t.update >= first && t.update <= last)),
  );
  const order = ORDERS[query.get("sort")];
  return order && order.by ? kept.sort(order.by) : kept;
}

function change(key, value) {
  const { query } = view();
  if (value) query.set(key, value);
  else query.delete(key);
  shownRows = ROWS;
  history.replaceState(null, "", `#/?${query}`);
  showList();
}

function select(label, choices, value, pick) {
  const options = choices.map(([key, text]) =>
    element("option", { value: key, selected: key === value }, text),
  );
  return element(
    "label",
    {},
    label,
    element("select", { "aria-label": label, onchange: (e) => pick(e.target.value) }, ...options),
  );
}

function filters(query) {
  const fields = Object.entries(FILTERS).map(([key, { label, of }]) => {
    const values = [...new Set(listing.trajectories.map(of))].sort();
    const choices = [["", "all"], ...values.map((v) => [v, v])];
    return select(label, choices, query.get(key) || "", (v) => change(key, v));
  });
  const bounds = listing.trajectories.some((t) => t.update !== null) ? [["from", "from update"], ["to", "to update"]] : [];
  for (const [key, label] of bounds) {
    const pick = (e) => change(key, e.target.value);
    const attributes = { type: "number", min: 0, value: query.get(key) || "", onchange: pick };
    fields.push(element("label", {}, label, element("input", { "aria-label": label, ...attributes })));
  }
  const orders = Object.entries(ORDERS).map(([key, { label }]) => [key, label]);
  fields.push(select("order", orders, query.get("sort") || "newest", (v) => change("sort", v)));
  return element("form", { class: "filters", onsubmit: (e) => e.preventDefault() }, ...fields);
}

function mark(listed) {
  return element(
    "span",
    { class: `mark ${listed.is_success ? "good" : "bad"}` },
    listed.is_success ? "✓" : "✗",
    element("span", { class: "skip" }, listed.is_success ? "success" : "failure"),
  );
}

const where = (t) => (t.update === null ? t.played : `update ${t.update}`);

function row(t, query) {
  const cell = (text, kind = "") => element("td", { class: kind }, text);
  const status = t.num_cut ? `${t.status}, cut` : t.status;
  return element(
    "tr",
    {},
    cell(mark(t)),
    element("td", {}, element("a", { href: `#/t/${t.id}?${query}` }, `${t.task} ${t.index}, attempt ${t.attempt}`), element("small", { class: "narrow" }, `${where(t)}, ${status}`)),
    cell(where(t), "spare"),
    cell(status, status === "completed" ? "spare" : "bad spare"),
    cell(fixed(t.reward), "number"),
    cell(signed(t.reward - t.group_mean), "number spare"),
    cell(String(t.num_turns), "number"),
    cell(String(t.num_tokens), "number spare"),
  );
}

function showList() {
  const { query } = view();
  const focused = document.activeElement && document.activeElement.getAttribute("aria-label");
  const kept = chosen(query);
  const heads = [
    ["", ""], ["trajectory", ""], ["played in", "spare"], ["status", "spare"],
    ["reward", "number"], ["to its group", "number spare"], ["turns", "number"],
    ["tokens", "number spare"],
  ];
  const more = () => {
    shownRows += ROWS;
    showList();
  };
  show(
    filters(query),
    element("p", { class: "note" }, `${kept.length} of ${listing.trajectories.length} trajectories`),
    element(
      "table",
      { class: "list" },
      element("thead", {}, element("tr", {}, ...heads.map(([text, kind]) => element("th", { scope: "col", class: kind }, text)))),
      element("tbody", {}, ...kept.slice(0, shownRows).map((t) => row(t, query))),
    ),
    kept.length > shownRows ? element("p", {}, element("button", { onclick: more }, `Show ${Math.min(ROWS, kept.length - shownRows)} more`)) : "",
  );
  if (focused) {
    const same = document.querySelector(`[aria-label="${CSS.escape(focused)}"]`);
    if (same) same.focus();
  }
}

// ---- one trajectory --------------------------------------------------------

async function showTrajectory(id, query) {
  const listed = listing.trajectories.find((t) => t.id === id);
  if (!listed) return showMissing(id);
  const whole = await ask(`trajectories/${encodeURIComponent(id)}`);
  if (view().id !== id) return; // the reader has gone on
  const list = chosen(query);
  const place = list.findIndex((t) => t.id === id);
  const beside = (step, text) => {
    const other = place < 0 ? undefined : list[place + step];
    return other ? element("a", { href: `#/t/${other.id}?${query}`, rel: text }, text) : null;
  };
  const members = listing.trajectories.filter((t) => t.group === listed.group);
  show(
    element("h2", {}, `${listed.task}, ${listed.split} ${listed.index}, attempt ${listed.attempt}`),
    facts(listed, whole),
    members.length > 1 ? siblings(members, id, query) : "",
    element(
      "div",
      { class: "controls" },
      element("div", { class: "colour" }, select("show", Object.entries(COLOURS), colour, (v) => {
        colour = v;
        showTrajectory(id, query).catch(report);
      }), legend(whole.turns.some((turn) => turn.advantage.length))),
      element("nav", { "aria-label": "Beside" }, element("a", { href: `#/?${query}` }, "list"), beside(-1, "previous"), beside(1, "next")),
    ),
    colour === "text" ? messages(whole.messages, whole) : tokens(whole, listed),
  );
}

function showMissing(id) {
  show(
    element("h2", {}, "Not kept"),
    element("p", {}, `This run has kept no trajectory ${id}. `, element("a", { href: "#/" }, "All that it has kept")),
  );
}

function facts(t, whole) {
  const versions = t.oldest_version === t.newest_version ? `version ${t.newest_version}` : `versions ${t.oldest_version} to ${t.newest_version}`;
  const lines = [
    chip(where(t)),
    chip(t.status, t.status === "completed" ? "" : "bad"),
    chip(`${t.is_success ? "success, " : ""}reward ${fixed(t.reward)}`, t.is_success ? "good" : ""),
    chip(`${plural(t.num_turns, "turn")}, ${t.num_sampled} of ${t.num_tokens} tokens sampled`),
    chip(t.newest_version < 0 ? "played without a policy" : versions),
  ];
  if (t.num_cut) lines.push(chip(`${plural(t.num_cut, "answer")} cut`, "bad"));
  if (t.policy_slots.some((slot) => slot > 0)) lines.push(chip(`policy slots ${t.policy_slots.join(", ")}`));
  for (const [name, value] of Object.entries(whole.metrics)) {
    if (name !== "success") lines.push(chip(`${name} ${Number(value.toPrecision(4))}`));
  }
  return element("ul", { class: "chips" }, ...lines);
}

// Names a member of a group: by its number, or by who played if that differs.
const attemptOf = (t, members) => (members.some((m) => m.played !== t.played) ? t.played : `attempt ${t.attempt}`);

function siblings(members, id, query) {
  const links = members.map((t) =>
    element("a", { class: `chip ${t.is_success ? "good" : "bad"}`, href: `#/t/${t.id}?${query}`, "aria-current": t.id === id ? "true" : undefined }, `${attemptOf(t, members)}: ${fixed(t.reward)}`),
  );
  const group = members[0].group;
  return element("nav", { "aria-label": "The group" }, ...links, element("a", { href: `#/g/${group}?${query}` }, "side by side"));
}

function messages(list, whole) {
  const lines = (m) => (m.line_title ? [element("li", { class: "line" }, m.line_title)] : []);
  return element("ol", { class: "messages" }, ...list.flatMap((m) => [...lines(m), message(m, whole)]));
}

function message(m, whole) {
  const turn = m.turn === null || !whole ? null : whole.turns[m.turn];
  const who = [element("b", {}, m.role)];
  if (turn) who.push(...turnFacts(turn, m.turn).map((text) => element("span", {}, text)));
  return element(
    "li",
    { class: `message ${m.role}` },
    element("div", { class: "who" }, ...who),
    m.content ? content(m.content, m.role) : null,
    ...m.calls.map((call) =>
      element(
        "div",
        { class: call.is_json ? "call" : "call broken" },
        element("code", { class: "called" }, call.name || "no function named"),
        call.is_json ? null : element("small", { class: "bad" }, " the arguments are not JSON"),
        element("pre", {}, call.arguments),
      ),
    ),
  );
}

function content(text, role) {
  const limit = role === "system" ? 240 : LONG;
  if (text.length <= limit) return element("pre", {}, text);
  const lead = `${text.slice(0, 120).replace(/\s+/g, " ")}… ${text.length} characters`;
  return element("details", {}, element("summary", {}, lead), element("pre", {}, text));
}

function turnFacts(turn, number) {
  const facts = [`turn ${number + 1}`, ...(turn.line_title ? [turn.line_title] : []), plural(turn.sampled.length, "token")];
  if (turn.version.length && turn.version[0] >= 0) {
    const [first, last] = [Math.min(...turn.version), Math.max(...turn.version)];
    facts.push(`policy slot ${turn.policy_slot}`, first === last ? `version ${first}` : `versions ${first} to ${last}`);
  }
  if (turn.raw_logprob.length) {
    const mean = turn.raw_logprob.reduce((a, b) => a + b, 0) / turn.raw_logprob.length;
    facts.push(`mean logprob ${mean.toFixed(3)}`);
  }
  if (turn.advantage.length) {
    const gaps = turn.learner_logprob.map((logprob, n) => Math.abs(logprob - turn.behavior_logprob[n]));
    facts.push(`advantage ${range(turn.advantage)}`, `mean |log-ratio| ${(gaps.reduce((a, b) => a + b, 0) / gaps.length).toFixed(3)}`);
  }
  if (turn.is_cut) facts.push("cut at a limit of tokens");
  if (turn.has_grammar) facts.push("constrained by a grammar");
  if (turn.reward) facts.push(`reward ${fixed(turn.reward)}`);
  return facts;
}

// ---- tokens ----------------------------------------------------------------

const level = (value, steps) => steps.filter((step) => value >= step).length;

// Returns the class of a sampled token, and its hint.
function shade(turn, n, listed) {
  const [raw, drawn] = [turn.raw_logprob[n], turn.behavior_logprob[n]];
  const newest = listed.update === null ? listed.newest_version : listed.update;
  const shaded = (value, steps, hint) => [level(Math.abs(value), steps) ? `${value > 0 ? "up" : "down"}-${level(Math.abs(value), steps)}` : "", hint];
  const rare = (value, steps, hint) => shaded(-Math.max(value, 0), steps, hint);
  if (NEEDS_LEARNER.includes(colour) && !turn.advantage.length) return ["", "not trained on"];
  switch (colour) {
    case "trained":
      return ["up-2", "sampled"];
    case "probability":
      return rare(-raw, STEPS.unsure, `probability ${Math.exp(raw).toFixed(3)}, logprob ${raw}`);
    case "sampler":
      return shaded(drawn - raw, STEPS.gap, `sampler ${drawn}, at temperature 1 ${raw}`);
    case "learner": {
      const gap = turn.learner_logprob[n] - drawn;
      return shaded(gap, STEPS.gap, `learner ${turn.learner_logprob[n]}, sampler ${drawn}, ratio ${Math.exp(gap).toFixed(3)}`);
    }
    case "advantage":
      return shaded(turn.advantage[n], STEPS.advantage, `advantage ${turn.advantage[n]}`);
    default: {
      const age = newest - turn.version[n];
      return rare(age, STEPS.age, `version ${turn.version[n]}, ${plural(age, "update")} before ${newest}`);
    }
  }
}

function tokens(whole, listed) {
  const turns = whole.turns.map((turn, number) => {
    const read = element("p", { class: "tokens" }, ...turn.observation.map((text) => element("span", { class: "read" }, text)));
    const sampled = element("p", { class: "tokens" }, ...turn.sampled.map((text, n) => {
      const [kind, hint] = shade(turn, n, listed);
      return element("span", { class: kind, title: hint }, text);
    }));
    const long = turn.observation.length > 300;
    return element(
      "li",
      { class: "message assistant" },
      element("div", { class: "who" }, ...turnFacts(turn, number).map((text) => element("span", {}, text))),
      element("details", { open: !long }, element("summary", {}, `${plural(turn.observation.length, "token")} read`), read),
      sampled,
    );
  });
  const tell = (event) => {
    if (event.target.title) say("hint", event.target.title);
  };
  return element("ol", { class: "messages", onclick: tell }, ...turns);
}

function legend(isTrained) {
  const span = (kind, text) => element("span", { class: kind }, text);
  const lines = {
    text: [],
    trained: [span("up-2", "sampled by the policy, and trained on"), "; faint: read"],
    probability: [span("down-1", "below 82 %"), ", ", span("down-2", "50 %"), ", ", span("down-3", "20 %")],
    sampler: [span("up-2", "likelier"), " or ", span("down-2", "rarer"), " for the sampler than at temperature 1, by 0.05, 0.2, 0.7 nats"],
    learner: isTrained ? [span("up-2", "likelier"), " or ", span("down-2", "rarer"), " for the learner, before the update, than for the sampler, by 0.05, 0.2, 0.7 nats"] : [UNTRAINED],
    advantage: isTrained ? [span("up-2", "made likelier"), " or ", span("down-2", "rarer"), " by the update: an advantage beyond 0, 0.5, 1.5"] : [UNTRAINED],
    version: [span("down-1", "1"), ", ", span("down-2", "4"), ", ", span("down-3", "16 updates or more"), " older than the policy in training"],
  };
  return element("p", { class: "note tokens" }, ...lines[colour]);
}

// ---- a group side by side --------------------------------------------------

async function showGroup(group, query) {
  const members = listing.trajectories.filter((t) => t.group === group);
  if (!members.length) return showMissing(group);
  const wholes = await Promise.all(members.map((t) => ask(`trajectories/${encodeURIComponent(t.id)}`)));
  if (view().id !== group) return;
  const same = sharedMessages(wholes.map((w) => w.messages));
  const [first] = members;
  const parting = same === Math.max(...wholes.map((w) => w.messages.length)) ? "All are the same." : `They part at message ${same + 1}.`;
  show(
    element("h2", {}, `${first.task}, ${first.split} ${first.index}: ${plural(members.length, "attempt")} side by side`),
    element("p", { class: "note" }, `${isReport ? "" : `${where(first)}, `}mean reward ${fixed(first.group_mean)}. `, element("a", { href: `#/?${query}` }, "list")),
    element("details", { open: same <= 2 }, element("summary", {}, `${plural(same, "message")} that all share`), messages(wholes[0].messages.slice(0, same), wholes[0])),
    element("p", { class: "parting" }, parting),
    element("div", { class: "columns", tabindex: "0", "aria-label": "attempts" }, ...members.map((t, n) =>
      element(
        "section",
        {},
        element("h3", {}, mark(t), " ", element("a", { href: `#/t/${t.id}?${query}` }, attemptOf(t, members))),
        element("p", { class: "note" }, `${t.status}, reward ${fixed(t.reward)} (${signed(t.reward - t.group_mean)})`),
        messages(wholes[n].messages.slice(same), wholes[n]),
      ),
    )),
  );
}

function sharedMessages(lists) {
  const text = ({ role, content, calls }) => JSON.stringify([role, content, calls]);
  const shortest = Math.min(...lists.map((list) => list.length));
  let same = 0;
  while (same < shortest && lists.every((list) => text(list[same]) === text(lists[0][same]))) same += 1;
  return same;
}

// ---- curves ----------------------------------------------------------------

async function showCurves() {
  if (!document.querySelector(".panels")) show(element("p", { class: "note" }, "drawing"));
  const [state, panels] = await Promise.all([ask("now"), ask("curves")]);
  if (view().name !== "curves") return;
  const figures = panels.map((panel) => {
    const drawing = element("div", { class: "drawing", role: "img", "aria-label": `${panel.title}: ${panel.note}` });
    drawing.innerHTML = panel.svg; // our own, drawn by the server
    return element("figure", {}, element("h3", {}, panel.title), drawing, element("figcaption", {}, panel.note));
  });
  const numbers = Object.entries(state.figures).map(([text, value]) => chip(`${Number(value.toPrecision(3))} ${text}`));
  const faults = state.faults.map((f) => element("li", {}, `${new Date(1000 * f.time_s).toLocaleString()}, update ${f.update}: ${f.text}`));
  show(
    element("ul", { class: "chips" }, ...numbers),
    element("div", { class: "panels" }, ...figures),
    state.num_faults ? element("h2", {}, `${plural(state.num_faults, "fault")}, the latest`) : "",
    element("ul", {}, ...faults.reverse()),
  );
}

// ---- all together ----------------------------------------------------------

function report(error) {
  show(element("h2", {}, "This cannot be shown"), element("p", {}, error.message));
}

async function route() {
  const { name, id, query } = view();
  for (const link of document.querySelectorAll(".viewer header nav a")) {
    const isHere = (link.hash === "#/curves") === (name === "curves");
    if (isHere) link.setAttribute("aria-current", "page");
    else link.removeAttribute("aria-current");
  }
  if (name === "trajectory") await showTrajectory(id, query);
  else if (name === "group") await showGroup(id, query);
  else if (name === "curves") await showCurves();
  else showList();
  const isMoved = isReport ? location.hash.startsWith("#/") : name !== "list";
  if (isMoved) (document.getElementById("episodes") || document.body).scrollIntoView();
}

async function start() {
  await refresh();
  await route();
  if (isOneFile) return;
  for (;;) {
    await new Promise((done) => setTimeout(done, POLL_MS));
    if (document.visibilityState === "visible") await refresh();
  }
}

window.addEventListener("hashchange", () => {
  if (!location.hash || location.hash.startsWith("#/")) route().catch(report); // others are places in a report
});
start().catch(report);
