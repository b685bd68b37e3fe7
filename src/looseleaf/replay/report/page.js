"use strict";
const report = JSON.parse(document.getElementById("document").textContent);
const at = (id) => document.getElementById(id);
const make = (tag, text, className) => {
  const element = document.createElement(tag);
  if (text !== undefined) element.textContent = text;
  if (className) element.className = className;
  return element;
};
// Colours that are told apart by most colour-blind readers (Okabe and Ito).
const KINDS = [
  ["token_states", "token states", "#0072b2"],
  ["reserved", "reserved", "#56b4e9"],
  ["internal_fragmentation", "internal fragmentation", "#e69f00"],
  ["free", "free", "#d9dee4"],
];
const CONSTRAINTS = [
  ["blocks", "blocks", "#d55e00"],
  ["seats", "seats", "#cc79a7"],
  ["budget", "token budget", "#f0e442"],
  ["arrivals", "none waiting", "#d9dee4"],
];
const LINES = ["#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#000000", "#8c6d31", "#7b4ba8", "#6b7280"];
const DASHES = ["solid", "dash", "dot", "dashdot"];
const cells = report.cells.filter((cell) => !cell.refused);
const narrow = () => window.innerWidth < 600;
const settings = { responsive: true, displaylogo: false, displayModeBar: false };

function layout(height, more) {
  const legend = { orientation: "h", x: 0, y: 1, yanchor: "bottom", traceorder: "normal", font: { size: 12 } };
  return Object.assign({
    height, margin: { l: 52, r: 12, t: 48, b: 44 }, legend, hovermode: "closest", dragmode: narrow() ? false : "zoom",
    font: { family: "system-ui, sans-serif", size: 12, color: "#1c2430" }, paper_bgcolor: "rgba(0,0,0,0)",
  }, more);
}

function heading() {
  document.title = report.title;
  document.querySelector("h1").textContent = report.title;
  at("lead").textContent = report.lead.join("\n");
  for (const warning of report.warnings) at("warnings").append(make("li", warning));
  at("made").textContent = report.made;
  for (const [word, meaning] of report.glossary) at("glossary").append(make("dt", word), make("dd", meaning));
}

function row(tag, first, others) {
  const line = make("tr");
  line.append(make("th", first), ...others.map((text) => make(tag, text)));
  return line;
}

function table() {
  const head = make("thead");
  head.append(row("th", "", cells.map((cell) => cell.label)));
  const body = make("tbody");
  let about = "";
  for (const figure of report.figures) {
    const line = row("td", figure.title, figure.shown);
    if (about && figure.about !== about) line.className = "begins";
    about = figure.about;
    for (const place of figure.best) line.children[place + 1].className = "best";
    body.append(line);
  }
  at("cells").append(head, body);
  for (const cell of report.cells.filter((each) => each.refused)) {
    at("warnings").append(make("li", cell.label + " was refused: " + cell.refused));
  }
}

// Bars lie on their side: names stay readable on a phone, where they stand above their bar.
function bars(id, kinds, values) {
  const names = cells.map((cell) => cell.label).reverse();
  const traces = kinds.map(([key, name, color]) => ({
    type: "bar", orientation: "h", name, marker: { color }, y: names, x: values(key).reverse(),
    hovertemplate: "%{y}<br>" + name + ": %{x:.1%}<extra></extra>",
  }));
  const longest = Math.max(...names.map((name) => name.length));
  const left = narrow() ? 12 : Math.min(300, 24 + longest * 7);
  const shape = layout(96 + cells.length * (narrow() ? 44 : 30), {
    barmode: "stack", bargap: narrow() ? 0.55 : 0.3, margin: { l: left, r: 16, t: 48, b: 36 },
    xaxis: { range: [0, 1], tickformat: ".0%", fixedrange: true },
    yaxis: { fixedrange: true, showticklabels: !narrow(), automargin: false, ticklen: 6, tickcolor: "rgba(0,0,0,0)" },
  });
  if (narrow()) {
    shape.annotations = names.map((name) => ({
      x: 0, y: name, text: name, showarrow: false, xanchor: "left", yanchor: "bottom", yshift: 9, font: { size: 11 },
    }));
  }
  Plotly.newPlot(id, traces, shape, settings);
}

function latency(kind) {
  for (const button of at("latency-choice").children) button.setAttribute("aria-pressed", button.dataset.kind === kind);
  const traces = cells.map((cell, i) => ({
    type: "scatter", mode: "lines", name: cell.label, x: cell.quantiles[kind], y: report.quantiles,
    line: { color: LINES[i % LINES.length], dash: DASHES[Math.floor(i / LINES.length) % DASHES.length], width: 2 },
    hovertemplate: "%{y:.0%} within %{x:.3g} s<extra>" + cell.label + "</extra>",
  }));
  const target = report.slo[kind];
  const line = { type: "line", x0: target, x1: target, yref: "paper", y0: 0, y1: 1, line: { dash: "dash", color: "#5b6675" } };
  const positive = Math.min(...cells.flatMap((cell) => cell.quantiles[kind]).filter((value) => value > 0));
  const largest = Math.max(...cells.flatMap((cell) => cell.quantiles[kind]), target || 0);
  const logarithmic = isFinite(positive) && largest / positive > 50;
  // Below a narrow plot the legend takes a line for each cell.
  const below = 19 * cells.length + 16;
  const legend = narrow() ? { orientation: "v", x: 0, yref: "container", y: 0, yanchor: "bottom", font: { size: 11 } }
    : { orientation: "v", x: 1.02, y: 1, font: { size: 11 } };
  Plotly.react("latency", traces, layout(narrow() ? 330 + below : 400, {
    legend, shapes: target ? [line] : [], margin: { l: 52, r: 12, t: 12, b: narrow() ? 48 + below : 44 },
    xaxis: { title: { text: "seconds" }, type: logarithmic ? "log" : "linear", rangemode: "tozero", fixedrange: narrow(),
      dtick: logarithmic ? 1 : undefined },
    yaxis: { range: [0, 1.005], tickformat: ".0%", fixedrange: true },
  }), settings);
}

function latencies() {
  for (const [kind, name] of Object.entries(report.latencies)) {
    const button = make("button", name);
    button.dataset.kind = kind;
    button.onclick = () => latency(kind);
    at("latency-choice").append(button);
  }
  latency("ttft");
}

function overTime(cell) {
  const time = cell.timeline.time;
  const slots = KINDS.map(([key, name, color]) => ({
    type: "scatter", mode: "lines", stackgroup: "slots", name, x: time, y: cell.timeline[key], fillcolor: color,
    line: { width: 0, shape: "hv" }, hovertemplate: name + ": %{y:,}<extra></extra>",
  }));
  const seconds = { title: { text: "seconds since the trace began" }, fixedrange: narrow() };
  const upright = { fixedrange: true, rangemode: "tozero" };
  Plotly.react("slots", slots, layout(340, {
    xaxis: seconds, yaxis: { ...upright, title: { text: "token slots" } }, hovermode: "x unified",
    margin: { l: 64, r: 12, t: 64, b: 44 },
  }), settings);
  const sequences = [["running", "running", "#009e73"], ["waiting", "waiting", "#d55e00"]].map(([key, name, color]) => ({
    type: "scatter", mode: "lines", name, x: time, y: cell.timeline[key], line: { color, width: 1.5, shape: "hv" },
    hovertemplate: name + ": %{y:.1f}<extra></extra>",
  }));
  Plotly.react("sequences", sequences, layout(300, {
    xaxis: seconds, yaxis: { ...upright, title: { text: "sequences" } }, hovermode: "x unified",
    margin: { l: 64, r: 12, t: 40, b: 44 },
  }), settings);
  const waits = CONSTRAINTS.map(([key, name, color]) => ({
    type: "scatter", mode: "lines", stackgroup: "waits", name, x: time, y: cell.waits[key], fillcolor: color,
    line: { width: 0, shape: "hv" }, hovertemplate: name + ": %{y:.0%}<extra></extra>",
  }));
  Plotly.react("waits", waits, layout(240, {
    xaxis: seconds, yaxis: { ...upright, range: [0, 1], tickformat: ".0%", title: { text: "the next waits for" } },
    hovermode: "x unified", margin: { l: 64, r: 12, t: 48, b: 44 },
  }), settings);
}

const TENANTS = ["tenant", "requests", "output tokens", "share of output", "first token, mean s", "first token, p99 s",
  "end to end, mean s", "within targets"];

function tenants(cell) {
  at("tenants").replaceChildren();
  if (!cell.tenants.length) return;
  const head = make("thead"), body = make("tbody"), whole = make("table"), scroll = make("div", undefined, "scroll");
  head.append(row("th", TENANTS[0], TENANTS.slice(1)));
  body.append(...cell.tenants.map((tenant) => row("td", tenant[0], tenant.slice(1))));
  whole.append(head, body);
  scroll.append(whole);
  at("tenants").append(make("h2", "Tenants"), scroll);
}

function draw() {
  if (!cells.length) return;
  bars("split", KINDS, (key) => cells.map((cell) => cell.split[key]));
  bars("bound", CONSTRAINTS, (key) => cells.map((cell) => cell.bound[key]));
  latencies();
  const choice = at("cell-choice");
  cells.forEach((cell, i) => choice.append(new Option(cell.label, i)));
  choice.selectedIndex = cells.length - 1;
  const show = () => {
    overTime(cells[choice.value]);
    tenants(cells[choice.value]);
  };
  choice.onchange = show;
  show();
}

heading();
table();
const packed = Uint8Array.from(atob(at("plotly").textContent), (c) => c.charCodeAt(0));
new Response(new Blob([packed]).stream().pipeThrough(new DecompressionStream("gzip"))).text().then((library) => {
  const script = make("script", library);
  document.head.append(script);
  draw();
  document.body.dataset.drawn = "yes";
});
