"use strict";
// The page asks for one overview every two seconds, while somebody sees it.
// Names of tasks and addresses come from workers: they are only ever text.

const EVERY_MS = 2000;
const KEY = "operator token"; // kept until the tab is closed
const at = (id) => document.getElementById(id);
let before = null; // the overview before this one, and when it came

async function call(path, { method = "GET", body, session } = {}) {
  const headers = {};
  const token = sessionStorage.getItem(KEY);
  if (token) headers.Authorization = `Bearer ${token}`;
  if (session !== undefined) headers.session_id = String(session);
  if (body) headers["Content-Type"] = "application/json";
  const signal = AbortSignal.timeout(10_000);
  const response = await fetch(`api/${path}`, { method, headers, signal, body: body && JSON.stringify(body) });
  const text = await response.text();
  if (response.ok) return JSON.parse(text);
  let message = text;
  try {
    message = JSON.parse(text).message ?? text;
  } catch {} // a proxy's own page
  throw Object.assign(new Error(message), { status: response.status });
}

function element(name, properties, ...children) {
  const made = document.createElement(name);
  for (const [key, value] of Object.entries(properties ?? {})) {
    if (key === "onclick") made.onclick = value;
    else if (value !== undefined) made.setAttribute(key, value);
  }
  made.append(...children.filter((child) => child !== null));
  return made;
}

const seconds = (s) => (s < 100 ? `${s.toFixed(s < 10 ? 1 : 0)} s` : s < 6000 ? `${Math.round(s / 60)} min` : `${(s / 3600).toFixed(1)} h`);
const plural = (n, word) => `${n.toLocaleString("en")} ${word}${n === 1 ? "" : "s"}`;
const sum = (values) => values.reduce((a, b) => a + b, 0);

function table(columns, rows, none) {
  if (!rows.length) return element("p", { class: "faint" }, none);
  const head = element("tr", {}, ...columns.map(([name, kind]) => element("th", { class: kind, scope: "col" }, name)));
  const body = rows.map((row) =>
    element("tr", {}, ...row.map((cell, n) => element("td", { class: columns[n][1], "data-name": columns[n][0] || undefined }, cell))),
  );
  return element("table", {}, element("thead", {}, head), element("tbody", {}, ...body));
}

// Redrawing would take the focus from a button that is about to be pressed.
function put(id, made) {
  const place = at(id);
  const focused = place.contains(document.activeElement) ? document.activeElement.getAttribute("aria-label") : null;
  place.replaceChildren(made);
  if (focused) [...place.querySelectorAll("button")].find((b) => b.getAttribute("aria-label") === focused)?.focus();
}

function act(label, description, question, path, options) {
  const press = async () => {
    if (question && !confirm(question)) return;
    try {
      await call(path, { method: "POST", ...options });
      await look();
    } catch (error) {
      trouble(`${description}: ${error.message}`);
    }
  };
  return element("button", { "aria-label": description, onclick: press }, label);
}

const trouble = (text) => { at("trouble").textContent = text; };

function showTasks(found, passed_s) {
  const rows = found.tasks.map((task) => {
    const alive = task.workers.filter((w) => w.health === "alive");
    const sessions = sum(task.workers.map((w) => w.sessions));
    const places = sum(alive.map((w) => w.capacity));
    const old = before?.found.tasks.find((t) => t.name === task.name);
    const ended = sum(Object.values(task.ended));
    const rate = old && passed_s > 0 ? (ended - sum(Object.values(old.ended))) / passed_s : null;
    const statuses = Object.entries(task.ended).sort((a, b) => b[1] - a[1]).map(([name, n]) => `${name} ${Math.round((100 * n) / ended)} %`);
    return [
      task.name,
      element("span", { class: alive.length < task.workers.length ? "bad" : "" }, `${alive.length} of ${task.workers.length}`),
      element("span", {}, `${sessions} of ${places} `, element("meter", { max: Math.max(places, 1), value: sessions, "aria-label": `${sessions} of ${places} places` })),
      element("span", { class: task.waiting ? "bad" : "" }, String(task.waiting)),
      rate === null ? "" : rate.toFixed(1),
      element("span", {}, statuses.join(", ") || "none"),
      act("Cancel", `Cancel all sessions of ${task.name}`, `Cancel ${plural(sessions, "session")} of ${task.name}? Their clients get an error.`, `cancel_all?name=${encodeURIComponent(task.name)}`),
    ];
  });
  put("tasks", table([["task"], ["alive"], ["sessions"], ["waiting", "number"], ["ended/s", "number"], ["ended as"], [""]], rows, "No worker has registered a task. A worker's --controller is the address of this page with /api."));
}

function showWorkers(found) {
  const rows = found.tasks.flatMap((task) =>
    task.workers.map((worker) => {
      const name = `${task.name}#${worker.id}`;
      const state = worker.is_draining ? `${worker.health}, draining` : worker.health;
      const body = { name: task.name, worker_id: worker.id, stale: !worker.is_draining };
      return [
        name,
        worker.address,
        element("span", { class: state === "alive" ? "good" : "bad" }, state),
        `${worker.sessions} of ${worker.capacity}`,
        seconds(worker.silent_s),
        worker.is_draining
          ? act("Admit", `Admit sessions to ${name}`, null, "mark_stale", { body })
          : act("Drain", `Drain ${name}`, null, "mark_stale", { body }),
      ];
    }),
  );
  put("workers", table([["worker"], ["address"], ["state"], ["sessions", "number"], ["silent for", "number"], [""]], rows, "none"));
}

function showSessions(found) {
  const rows = found.sessions.map((session) => [
    String(session.id),
    `${session.task}#${session.worker}`,
    String(session.index),
    seconds(session.age_s),
    seconds(session.quiet_s),
    session.is_cancelling ? element("span", { class: "bad" }, "being cancelled") : session.is_busy ? "its worker answers" : "its client thinks",
    session.is_cancelling ? "" : act("Cancel", `Cancel session ${session.id}`, null, "cancel", { session: session.id }),
  ]);
  const cut = found.num_sessions > rows.length ? `; these ${rows.length} are quiet for the longest` : "";
  at("listed").textContent = `${plural(found.num_sessions, "session")}${cut}`;
  put("sessions", table([["session"], ["worker"], ["index"], ["age", "number"], ["quiet for", "number"], ["now"], [""]], rows, "none is open"));
}

function showChoice(found) {
  const choice = at("task");
  const names = ["", ...found.tasks.map((task) => task.name)];
  if (choice.value && !names.includes(choice.value)) names.push(choice.value);
  if (names.length === choice.length && names.every((name, n) => choice[n].value === name)) return;
  const chosen = choice.value;
  choice.replaceChildren(...names.map((name) => element("option", { value: name }, name || "all tasks")));
  choice.value = chosen;
}

async function look() {
  const task = at("task").value;
  let found;
  try {
    found = await call(`overview${task ? `?name=${encodeURIComponent(task)}` : ""}`);
  } catch (error) {
    const needsToken = error.status === 401;
    at("login").hidden = !needsToken;
    at("shown").hidden = at("cancel-all").hidden = needsToken;
    if (needsToken) {
      trouble(sessionStorage.getItem(KEY) ? "This is not the token of the operators." : "");
      sessionStorage.removeItem(KEY);
    } else {
      const since = before ? `; the page shows ${new Date(before.at).toLocaleTimeString()}` : "";
      trouble(`The controller does not answer (${error.message})${since}.`);
    }
    return;
  }
  const moment = Date.now();
  const passed_s = before && found.turns >= before.found.turns ? (moment - before.at) / 1000 : 0;
  const rate = passed_s > 0.5 ? `, ${((found.turns - before.found.turns) / passed_s).toFixed(1)} turns/s` : "";
  trouble("");
  at("login").hidden = true;
  at("shown").hidden = false;
  at("cancel-all").hidden = !found.tasks.length;
  at("now").textContent = `${plural(sum(found.tasks.flatMap((t) => t.workers.map((w) => w.sessions))), "session")}, ${plural(found.turns, "turn")} so far${rate}, ${plural(found.refused, "request")} refused`;
  showChoice(found);
  showTasks(found, passed_s);
  showWorkers(found);
  showSessions(found);
  before = { found, at: moment };
}

at("login").onsubmit = (event) => {
  event.preventDefault();
  sessionStorage.setItem(KEY, at("token").value.trim());
  at("token").value = "";
  look();
};
at("task").onchange = look;
at("cancel-all").onclick = async () => {
  if (!confirm("Cancel the sessions of all tasks? Their clients get an error.")) return;
  try {
    await call("cancel_all?force=true", { method: "POST" });
  } catch (error) {
    trouble(error.message);
  }
  look();
};
(async () => {
  for (;;) {
    if (!document.hidden) await look();
    await new Promise((resolve) => setTimeout(resolve, EVERY_MS));
  }
})();
