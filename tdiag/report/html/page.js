"use strict";
// Sorts and searches tables, draws the figures, zooms and searches the flame graphs.
// Everything that others named is text here, never markup.

const all = (selector, within = document) => [...within.querySelectorAll(selector)];
for (const tools of all(".tools")) tools.hidden = false;

// --- tables ---------------------------------------------------------------------------------

function sortBy(table, index, header) {
  const numeric = header.classList.contains("n");
  const now = header.getAttribute("aria-sort");
  // Large numbers and the letter A come first.
  const order = now ? (now === "ascending" ? "descending" : "ascending")
    : numeric ? "descending" : "ascending";
  for (const other of all("thead th", table)) other.removeAttribute("aria-sort");
  header.setAttribute("aria-sort", order);
  const key = (row) => {
    const cell = row.cells[index];
    return numeric ? Number(cell.dataset.v ?? -Infinity) : cell.textContent;
  };
  const compare = numeric
    ? (a, b) => (a < b ? -1 : a > b ? 1 : 0)
    : (a, b) => a.localeCompare(b, undefined, { numeric: true });
  const sign = order === "ascending" ? 1 : -1;
  const rows = [...table.tBodies[0].rows];
  rows.sort((a, b) => sign * compare(key(a), key(b)));
  table.tBodies[0].append(...rows);
}

for (const table of all("table.data")) {
  all("thead th", table).forEach((header, index) => {
    const button = document.createElement("button");
    button.type = "button";
    button.append(...header.childNodes);
    button.addEventListener("click", () => sortBy(table, index, header));
    header.append(button);
  });
}

for (const input of all("input[aria-controls]")) {
  const table = document.getElementById(input.getAttribute("aria-controls"));
  const status = input.closest(".tools").querySelector("[role=status]");
  input.addEventListener("input", () => {
    const words = input.value.toLowerCase().split(/\s+/).filter(Boolean);
    let shown = 0;
    for (const row of table.tBodies[0].rows) {
      const text = row.textContent.toLowerCase();
      row.hidden = !words.every((word) => text.includes(word));
      shown += !row.hidden;
    }
    const total = status.dataset.total;
    status.textContent = words.length ? `${shown} of ${total} rows` : `${total} rows`;
  });
}

// --- charts ---------------------------------------------------------------------------------

const charts = all(".chart");
let figures; // chart id → what Plotly draws, once a chart is drawn

function unpack(id) {
  const packed = atob(document.getElementById(id).textContent);
  const bytes = new Uint8Array(packed.length); // filled by a loop: `from` takes 0.3 s for Plotly
  for (let i = 0; i < packed.length; i++) bytes[i] = packed.charCodeAt(i);
  return new TextDecoder().decode(inflate(bytes));
}

function load() {
  figures = JSON.parse(unpack("figures"));
  if (!document.getElementById("library")) throw new Error("the plotly package was not installed whole");
  const script = document.createElement("script");
  script.textContent = unpack("library"); // the page's policy names its digest
  document.head.append(script);
}

function themed(figure) {
  const style = getComputedStyle(document.body);
  const paper = document.body.classList.contains("paper");
  const [fg, quiet, line, bg] = paper ? ["#000", "#444", "#bbb", "#fff"]
    : ["--fg", "--quiet", "--line", "--bg"].map((name) => style.getPropertyValue(name).trim());
  const layout = structuredClone(figure.layout);
  Object.assign(layout, {
    paper_bgcolor: "rgba(0,0,0,0)",
    plot_bgcolor: "rgba(0,0,0,0)",
    font: { color: fg, family: style.fontFamily, size: 12 },
    hoverlabel: { bgcolor: bg, bordercolor: quiet, align: "left", namelength: -1,
      font: { color: fg, family: style.fontFamily } },
    margin: { l: 52, r: 12, b: 44, t: 24, ...layout.margin },
    autosize: true,
  });
  for (const name of ["xaxis", "yaxis"]) layout[name] ??= {};
  for (const [name, axis] of Object.entries(layout)) {
    if (/^[xy]axis/.test(name)) {
      Object.assign(axis, { gridcolor: line, linecolor: line, zerolinecolor: line });
    }
  }
  for (const shape of layout.shapes ?? []) {
    if (shape.type === "line") shape.line.color = quiet;
  }
  return { data: structuredClone(figure.data), layout };
}

/** At once: a page is photographed and printed without waiting. */
function draw(chart) {
  try {
    if (!figures) load();
    const { data, layout } = themed(figures[chart.id]);
    chart.querySelector(".wait")?.remove();
    window.Plotly.react(chart, data, layout, { displayModeBar: false, responsive: true });
    chart.dataset.drawn = "yes";
  } catch (error) {
    const wait = chart.querySelector(".wait");
    if (wait) wait.textContent = `Not drawn: ${error.message}.`;
  }
}

const drawn = () => charts.filter((chart) => chart.dataset.drawn);
const near = new IntersectionObserver((entries) => {
  for (const entry of entries) {
    if (!entry.isIntersecting) continue;
    near.unobserve(entry.target);
    if (!entry.target.dataset.drawn) draw(entry.target);
  }
}, { rootMargin: "600px" });
for (const chart of charts) {
  if (chart.getBoundingClientRect().top < innerHeight) draw(chart); // each pushes the next one down
  else near.observe(chart);
}

matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => {
  for (const chart of drawn()) draw(chart);
});

// --- flame graphs ---------------------------------------------------------------------------

const FOUND = "#c2007b", DIMMED = "rgba(128,128,128,.45)";

/** Which bars match, and the share of all samples in them; one within another counts once. */
function find(trace, text) {
  const wanted = text.toLowerCase();
  const number = new Map(trace.ids.map((id, i) => [id, i]));
  const within = [];
  let share = 0;
  const matches = trace.ids.map((_, i) => {
    const match = i > 0 && trace.hovertext[i].toLowerCase().includes(wanted);
    const above = within[number.get(trace.parents[i])] ?? false;
    if (match && !above) share += trace.values[i] / trace.values[0];
    within.push(match || above);
    return match;
  });
  return { matches, share };
}

function search(input) {
  const chart = document.getElementById(input.dataset.flame);
  if (!chart.dataset.drawn) return;
  const trace = figures[chart.id].data[0];
  const status = input.closest(".tools").querySelector("[role=status]");
  const text = input.value.trim();
  let colors = trace.marker.colors;
  status.textContent = "";
  if (text) {
    const { matches, share } = find(trace, text);
    colors = matches.map((match) => (match ? FOUND : DIMMED));
    const count = matches.filter(Boolean).length;
    status.textContent = count
      ? `${count} found, ${(100 * share).toFixed(1)}% of the samples` : "nothing found";
  }
  window.Plotly.restyle(chart, { "marker.colors": [colors] });
}

function zoom(chart, id) {
  if (chart.dataset.drawn) window.Plotly.restyle(chart, { level: id });
}

for (const input of all("input[data-flame]")) {
  const chart = document.getElementById(input.dataset.flame);
  input.addEventListener("input", () => search(input));
  input.addEventListener("keydown", (event) => {
    if (event.key === "Escape") zoom(chart, "0");
    if (event.key !== "Enter" || !input.value.trim() || !chart.dataset.drawn) return;
    const trace = figures[chart.id].data[0];
    const { matches } = find(trace, input.value.trim());
    let widest = -1;
    matches.forEach((match, i) => {
      if (match && (widest < 0 || trace.values[i] > trace.values[widest])) widest = i;
    });
    if (widest >= 0) zoom(chart, trace.ids[widest]);
  });
}
for (const button of all("button[data-reset]")) {
  button.addEventListener("click", () => {
    zoom(document.getElementById(button.dataset.reset), "0");
    const input = document.querySelector(`input[data-flame="${button.dataset.reset}"]`);
    input.value = "";
    search(input);
  });
}

// --- paper ----------------------------------------------------------------------------------

// What is folded is printed, but for what is said of each rule; charts in black, as wide as paper.

const folded = [];
function toPaper() {
  if (document.body.classList.contains("paper")) return;
  folded.push(...all("details:not([open], .rule)"));
  for (const details of folded) details.open = true;
  document.body.classList.add("paper");
  for (const chart of charts) draw(chart);
}
function toScreen() {
  if (!document.body.classList.contains("paper")) return;
  for (const details of folded.splice(0)) details.open = false;
  document.body.classList.remove("paper");
  for (const chart of drawn()) draw(chart);
}
addEventListener("beforeprint", toPaper);
addEventListener("afterprint", toScreen);
matchMedia("print").addEventListener("change", ({ matches }) => (matches ? toPaper : toScreen)());
