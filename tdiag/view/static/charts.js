"use strict";
// The part of Google Charts that torch-tb-profiler uses, drawn with plotly.js and plain tables, so
// that the plugin's page is complete without the internet. Classes, options and events have
// Google's names and meanings: https://developers.google.com/chart/interactive/docs/reference.
// What others named is text here, never markup, but where the plugin asks for HTML.

(() => {
if (window.google?.charts) return; // Google's own were asked for, and came

const COLORS = [
  "#3366cc", "#dc3912", "#ff9900", "#109618", "#990099", "#0099c6", "#dd4477", "#66aa00",
  "#b82e2e", "#316395", "#994499", "#22aa99", "#aaaa11", "#6633cc", "#e67300", "#8b0707",
  "#651067", "#329262", "#5574a6", "#3b3eac",
]; // Google's, in its order
const FONT = "Roboto, Arial, sans-serif";
const QUIET = "#5f6368", LINE = "#dadce0", DARK = "#202124";
const TICK_PX = 26, TICK_CHARACTERS = 28, CHARACTER_PX = 7; // of the labels below bars
const LONG_WORD = /\S{25}/; // may be broken, so that a kernel's name does not make a table wide

const STYLE = `
.gc { font: 13px ${FONT}; color: ${DARK}; }
.gc-tip { position: fixed; z-index: 9999; pointer-events: none; max-width: min(60em, 80vw);
  padding: 6px 9px; background: #fff; border: 1px solid #bbb; border-radius: 3px;
  box-shadow: 0 1px 4px rgba(0, 0, 0, .3); overflow-wrap: anywhere; white-space: pre-line; }
.gc-tip:has(.visualization-tooltip) { white-space: normal; }
.gc-none { display: grid; place-items: center; color: ${QUIET}; margin: 0; }
.gc-pie { display: flex; align-items: stretch; }
.gc-pie > .gc-plot { flex: 1 1 0; min-width: 0; }
.gc-pie > ul { flex: 0 1 48%; min-width: 0; margin: 0; padding: 4px; overflow: auto;
  list-style: none; box-sizing: border-box; }
.gc-pie li { display: flex; align-items: center; gap: 6px; line-height: 20px; }
.gc-pie li[aria-current] { font-weight: 600; }
.gc-pie i { flex: none; width: 11px; height: 11px; border-radius: 50%; }
.gc-pie span { overflow: hidden; text-overflow: ellipsis; white-space: nowrap; }
.gc-scroll { overflow: auto; }
.gc table { border-collapse: collapse; width: 100%; font-size: 12px; }
.gc th, .gc td { border: 1px solid #e0e0e0; padding: 2px 5px; text-align: left; }
.gc .gc-long { min-width: 16em; overflow-wrap: anywhere; }
.gc th { background: #f5f5f5; }
.gc .gc-n { text-align: right; font-variant-numeric: tabular-nums; white-space: nowrap; }
.gc th button { all: unset; cursor: pointer; font-weight: 600; white-space: normal; }
.gc button:focus-visible { outline: 2px solid #1a73e8; }
.gc th[aria-sort="ascending"] button::after { content: " ▲"; }
.gc th[aria-sort="descending"] button::after { content: " ▼"; }
.gc tbody tr:nth-child(even) { background: #fafafa; }
.gc tbody tr:hover { background: #e8f0fe; }
.gc-pages { display: flex; gap: 8px; align-items: center; padding: 6px 0; color: ${QUIET}; }
`;

// --- data -----------------------------------------------------------------------------------

const number = new Intl.NumberFormat("en-US", { maximumFractionDigits: 3 });
const isCell = (cell) => cell !== null && typeof cell === "object" && "v" in cell;
const valueOf = (cell) => (isCell(cell) ? cell.v : cell);

function textOf(cell) {
  if (isCell(cell) && cell.f !== undefined) return cell.f;
  const value = valueOf(cell);
  return typeof value === "number" ? number.format(value) : String(value ?? "");
}

class DataTable {
  columns = [];
  rows = [];
  #properties = new Map();

  addColumn(column) { return this.columns.push(column) - 1; }
  addRow(row) { return this.rows.push(row) - 1; }
  addRows(rows) { for (const row of rows) this.addRow(row); }
  setProperty(row, column, name, value) { this.#properties.set(`${row} ${column} ${name}`, value); }
  getProperty(row, column, name) { return this.#properties.get(`${row} ${column} ${name}`); }

  /** The columns that are drawn: all but the first and those with a role, which belong to the one
   * before them. `tooltip`: the column that has its tooltips. */
  series() {
    const found = [];
    this.columns.forEach((column, index) => {
      if (column.role === "tooltip") found[found.length - 1].tooltip = index;
      else if (index && !column.role) found.push({ index, label: column.label ?? "" });
    });
    return found;
  }

  values(column) { return this.rows.map((row) => valueOf(row[column])); }
}

function arrayToDataTable([labels, ...rows]) {
  const table = new DataTable();
  for (const label of labels) table.addColumn({ label: textOf(label) });
  table.addRows(rows);
  return table;
}

// --- what all charts share ------------------------------------------------------------------

/** For Plotly, which reads markup in its texts. */
function plain(text, limit = 80) {
  const short = text.length > limit ? `${text.slice(0, limit - 1)}…` : text;
  return short.replace(/&/g, "&amp;").replace(/</g, "&lt;").replace(/>/g, "&gt;");
}

function element(name, className, text = "") {
  const made = document.createElement(name);
  made.className = className;
  made.textContent = text;
  return made;
}

const tip = element("div", "gc gc-tip");
tip.setAttribute("role", "tooltip");

/** Put it beside the mouse, and inside the window. `content`: a text, or { html }. */
function showTip(content, { clientX, clientY }) {
  if (content.html === undefined) tip.textContent = content;
  else tip.innerHTML = content.html;
  document.body.append(tip);
  const { width, height } = tip.getBoundingClientRect();
  const left = clientX + 14 + width > innerWidth ? clientX - 14 - width : clientX + 14;
  const top = clientY + 14 + height > innerHeight ? clientY - 14 - height : clientY + 14;
  tip.style.left = `${Math.max(0, left)}px`;
  tip.style.top = `${Math.max(0, top)}px`;
}

const drawn = new WeakMap(); // container → the chart in it

/** A chart of Plotly's. The others say `figure(table, options)`: { data, layout, config }. Point n
 * of a trace is row n of the column that the trace's `meta` names. */
class Chart {
  #handlers = new Map();
  #selection = [];

  constructor(container) { this.container = container; }

  on(name, handler) { this.#handlers.set(name, [...(this.#handlers.get(name) ?? []), handler]); }
  fire(name, event) { for (const handler of this.#handlers.get(name) ?? []) handler(event); }

  draw(table, options = {}) {
    drawn.get(this.container)?.clearChart();
    drawn.set(this.container, this);
    Object.assign(this, { table, options });
    this.root = element("div", "gc");
    this.container.append(this.root);
    if (!table.rows.length || !window.Plotly) {
      const why = window.Plotly ? "No data" : "Not drawn: the plotly package is not installed whole.";
      const none = element("p", "gc-none", why);
      none.style.height = `${options.height ?? 200}px`;
      this.root.append(none);
      return;
    }
    const plot = (this.plot = element("div", "gc-plot"));
    plot.setAttribute("role", "img");
    plot.setAttribute("aria-label", this.name());
    this.furnish();
    const { data, layout, config } = this.figure(table, options);
    const all = {
      height: options.height, autosize: true, dragmode: false, hovermode: "closest",
      colorway: options.colors ?? COLORS,
      paper_bgcolor: "rgba(0,0,0,0)", plot_bgcolor: "rgba(0,0,0,0)",
      font: { family: FONT, size: 12, color: DARK },
      margin: { l: 10, r: 10, t: options.title ? 40 : 12, b: 10 },
      ...layout,
    };
    if (options.title) {
      const font = { size: 14, weight: 600 };
      all.title = { text: plain(options.title, 200), font, x: 0, xref: "paper", y: 1, yref: "container",
        yanchor: "top", pad: { t: 12 } };
    }
    this.busy = Promise.resolve();
    this.plotly("newPlot", data, all, { displayModeBar: false, ...config }).then(() => {
      if (this.plot === plot) this.fire("ready");
    });
    this.resized = new ResizeObserver(() => {
      const { width } = plot._fullLayout ?? {}; // none when it is gone
      if (plot.clientWidth && Math.abs(plot.clientWidth - width) > 1) this.plotly("relayout", { autosize: true });
    });
    this.resized.observe(plot);
    plot.on("plotly_hover", ({ points, event }) => this.enter(this.place(points[0]), event));
    plot.on("plotly_unhover", () => this.leave());
    plot.on("plotly_click", ({ points }) => this.click(this.place(points[0])));
  }

  /** Call Plotly, which goes on after it returns: until `busy` is over, the plot must stay. */
  plotly(name, ...words) {
    const done = window.Plotly[name](this.plot, ...words);
    this.busy = Promise.allSettled([this.busy, done]);
    return done;
  }

  furnish() { this.root.append(this.plot); }

  name() {
    const { title, vAxis } = this.options;
    const labels = this.table.series().map(({ label }) => label);
    return [title, vAxis?.title, labels.join(", ")].filter(Boolean).join(": ");
  }

  /** Where a point of Plotly's is in the table. */
  place({ pointNumber, data }) { return { row: pointNumber, column: data.meta }; }

  enter(place, event) {
    if (place.row === undefined || place.column === undefined) return;
    showTip(this.tooltip(place), event);
    this.fire("onmouseover", place);
  }

  leave() {
    tip.remove();
    this.fire("onmouseout");
  }

  click(place) {
    const [now] = this.#selection;
    const again = now && now.row === place.row && now.column === place.column;
    this.setSelection(again ? [] : [place]);
    this.fire("select");
  }

  tooltip({ row, column }) {
    const cells = this.table.rows[row];
    const { label, tooltip } = this.table.series().find(({ index }) => index === column);
    if (tooltip === undefined) return `${textOf(cells[0])}\n${label}: ${textOf(cells[column])}`;
    const markup = this.options.tooltip?.isHtml && this.table.columns[tooltip].p?.html;
    return markup ? { html: textOf(cells[tooltip]) } : textOf(cells[tooltip]);
  }

  getSelection() { return [...this.#selection]; }

  setSelection(places) {
    this.#selection = [...(places ?? [])];
    if (this.plot) this.mark(this.#selection);
  }

  /** Show which points are selected. */
  mark(places) {
    const rows = this.plot.data.map(({ meta }) => {
      const own = places.filter(({ column }) => column === meta).map(({ row }) => row);
      return places.length ? own : null;
    });
    this.plotly("restyle", { selectedpoints: rows });
  }

  /** Where the data lies in the plot, px, and what of the first axis is shown. */
  area() {
    const { l, t, w, h } = this.plot._fullLayout._size;
    const [left, top, width, height] = [l, t, w, h].map(Math.round);
    return { box: { left, top, width, height }, range: [...this.plot.layout.xaxis.range] };
  }

  clearChart() {
    const { plot } = this;
    this.resized?.disconnect();
    if (plot) this.busy.then(() => window.Plotly.purge(plot));
    this.plot = undefined;
    this.root?.remove();
    tip.remove();
    if (drawn.get(this.container) === this) drawn.delete(this.container);
  }
}

// --- pies -----------------------------------------------------------------------------------

class PieChart extends Chart {
  /** With a legend of its own: Plotly's neither shortens long names nor scrolls as far. */
  furnish() {
    this.root.classList.add("gc-pie");
    this.root.append(this.plot);
    if (this.options.legend === "none") return;
    const list = element("ul", "");
    list.style.maxHeight = `${this.options.height}px`;
    this.items = this.table.rows.map((cells, row) => {
      const item = element("li", "");
      const [swatch, label] = [element("i", ""), element("span", "", textOf(cells[0]))];
      swatch.style.background = this.color(row);
      item.append(swatch, label);
      item.addEventListener("mouseenter", (event) => this.enter({ row, column: null }, event));
      item.addEventListener("mouseleave", () => this.leave());
      return item;
    });
    list.append(...this.items);
    this.root.append(list);
  }

  color(row) {
    const colors = this.options.colors ?? COLORS;
    return colors[row % colors.length];
  }

  figure(table, options) {
    const values = table.values(1);
    this.total = values.reduce((sum, value) => sum + value, 0);
    const data = [{
      type: "pie", values, labels: values.map((_, row) => String(row)), // names may occur twice
      text: values.map((_, row) => this.percent(row)), textinfo: "text", textposition: "inside",
      insidetextorientation: "horizontal", insidetextfont: { color: "#fff" },
      marker: { colors: values.map((_, row) => this.color(row)), line: { color: "#fff", width: 1 } },
      hole: options.pieHole ?? 0, sort: false, direction: "clockwise", hoverinfo: "none",
    }];
    return { data, layout: { showlegend: false, uniformtext: { mode: "hide", minsize: 9 } } };
  }

  percent(row) {
    const share = this.total ? valueOf(this.table.rows[row][1]) / this.total : 0;
    return `${(100 * share).toFixed(1)}%`;
  }

  place({ pointNumber }) { return { row: pointNumber, column: null }; }

  enter(place, event) {
    this.pointer = event;
    if (this.options.tooltip?.trigger === "selection") this.fire("onmouseover", place);
    else super.enter(place, event);
  }

  tooltip({ row }) {
    const [name, value] = this.table.rows[row];
    const { text = "both" } = this.options.tooltip ?? {};
    const parts = { both: `${textOf(value)} (${this.percent(row)})`, value: textOf(value),
      percentage: this.percent(row) };
    return `${textOf(name)}\n${parts[text]}`;
  }

  mark(places) {
    const rows = new Set(places.map(({ row }) => row));
    this.items?.forEach((item, row) => item.toggleAttribute("aria-current", rows.has(row)));
    for (const slice of this.plot.querySelectorAll(".slice")) {
      const { pointNumber } = slice.__data__;
      slice.style.opacity = rows.size && !rows.has(pointNumber) ? 0.5 : 1;
    }
    if (this.options.tooltip?.trigger !== "selection") return;
    if (rows.size && this.pointer) showTip(this.tooltip(places[0]), this.pointer);
    else tip.remove();
  }
}

// --- along an axis --------------------------------------------------------------------------

/** The value of an axis that shows `range` over `box`, `px` from the plot's left edge. */
const valueAt = (px, box, range) => range[0] + ((px - box.left) / box.width) * (range[1] - range[0]);

/** How many items come before the first of which `test` is true; it is of all after that. */
function firstAfter(items, test) {
  let [low, high] = [0, items.length];
  while (low < high) {
    const middle = (low + high) >> 1;
    if (test(items[middle])) high = middle;
    else low = middle + 1;
  }
  return low;
}

const axis = (title) => ({
  title: title ? { text: plain(title), font: { size: 12, color: QUIET } } : undefined,
  automargin: true, fixedrange: true, gridcolor: LINE, linecolor: LINE, zerolinecolor: "#9aa0a6",
  separatethousands: true, exponentformat: "none",
});

/** The first column's names, a place each; as many of them are written as there is room for. */
function categories(chart) {
  const names = chart.table.rows.map((cells) => textOf(cells[0]));
  const room = Math.max(chart.container.clientWidth, TICK_PX) / names.length;
  const every = Math.ceil(TICK_PX / room);
  const shown = names.map((_, row) => row).filter((row) => row % every === 0);
  const longest = Math.min(TICK_CHARACTERS, Math.max(...names.map(({ length }) => length)));
  return {
    ...axis(chart.options.hAxis?.title), showgrid: false, zeroline: false,
    range: [-0.5, names.length - 0.5], ticklabeloverflow: "allow",
    tickangle: longest * CHARACTER_PX > room * every ? -35 : 0,
    tickvals: shown, ticktext: shown.map((row) => plain(names[row], TICK_CHARACTERS)),
  };
}

const legend = (options) => (options.legend?.position === "bottom"
  ? { orientation: "h", x: 0.5, xanchor: "center", y: 0.01, yanchor: "bottom", yref: "container" }
  : { x: 1.02, y: 1 });

const line = (chart, { index, label }, x) => ({
  type: "scatter", meta: index, name: plain(label), x, y: chart.table.values(index),
  mode: "lines", hoverinfo: "none",
});

const bar = (chart, { index, label }) => ({
  type: "bar", meta: index, name: plain(label), x: chart.table.rows.map((_, row) => row),
  y: chart.table.values(index), hoverinfo: "none",
});

class ColumnChart extends Chart {
  figure(table, options) {
    const layout = {
      barmode: options.isStacked ? "relative" : "group", bargap: 0.382, // Google's golden section
      showlegend: true, legend: legend(options), xaxis: categories(this),
      yaxis: axis(options.vAxis?.title),
    };
    return { data: table.series().map((series) => bar(this, series)), layout };
  }
}

/** Bars without gaps: that is what its steps are. */
class SteppedAreaChart extends ColumnChart {
  figure(table, options) {
    const { data, layout } = super.figure(table, options);
    const opacity = options.areaOpacity ?? 0.3;
    data.forEach((trace, i) => {
      const color = (options.colors ?? COLORS)[i % COLORS.length];
      trace.marker = { color, opacity, line: { color, width: options.connectSteps === false ? 0 : 1 } };
    });
    Object.assign(layout, { bargap: 0, barmode: options.isStacked ? "relative" : "overlay" });
    return { data, layout };
  }
}

class ComboChart extends ColumnChart {
  figure(table, options) {
    const { layout } = super.figure(table, options);
    const data = table.series().map((series, i) => {
      const { type = options.seriesType, targetAxisIndex = 0 } = options.series?.[i] ?? {};
      const x = table.rows.map((_, row) => row);
      const trace = type === "bars" ? bar(this, series)
        : { ...line(this, series, x), mode: "lines+markers" };
      return { ...trace, yaxis: targetAxisIndex ? "y2" : "y" };
    });
    const include = (i) => ({ include: options.vAxes?.[i]?.maxValue });
    layout.yaxis.autorangeoptions = include(0);
    layout.yaxis2 = { ...axis(), overlaying: "y", side: "right", tickmode: "auto", showgrid: false,
      rangemode: "tozero", autorangeoptions: include(1) };
    layout.legend = { ...layout.legend, x: 1.08 };
    return { data, layout };
  }
}

class LineChart extends Chart {
  figure(table, options) {
    const x = table.values(0);
    const from = x.reduce((least, value) => Math.min(least, value), x[0]);
    const to = x.reduce((most, value) => Math.max(most, value), x[0]);
    this.whole = from < to ? [from, to] : [from - 0.5, from + 0.5];
    const data = table.series().map((series) => line(this, series, x));
    data.push({ type: "scatter", mode: "markers", x: [], y: [], hoverinfo: "skip", showlegend: false,
      marker: { size: 10, color: "#fff", line: { width: 3, color: DARK } } }); // what is selected
    const zooms = Boolean(options.explorer);
    const bounds = options.explorer?.keepInBounds
      ? { minallowed: this.whole[0], maxallowed: this.whole[1] } : {};
    if (options.explorer?.actions.includes("rightClickToReset")) {
      this.plot.addEventListener("contextmenu", (event) => {
        event.preventDefault();
        this.plotly("relayout", { "xaxis.range": [...this.whole] });
      });
    }
    const layout = {
      showlegend: true, legend: legend(options), dragmode: zooms ? "zoom" : false,
      xaxis: { ...axis(options.hAxis?.title), ...bounds, fixedrange: !zooms, range: [...this.whole] },
      yaxis: { ...axis(options.vAxis?.title), rangemode: "tozero" },
    };
    return { data, layout, config: { doubleClick: "reset" } };
  }

  mark(places) {
    const rows = places.map(({ row, column }) => [this.table.rows[row], column]);
    const x = rows.map(([cells]) => valueOf(cells[0]));
    const y = rows.map(([cells, column]) => valueOf(cells[column]));
    this.plotly("restyle", { x: [x], y: [y] }, [this.plot.data.length - 1]);
  }

  clearChart() {
    this.last = this.plot && this.area(); // the plugin goes on asking charts that it replaced
    super.clearChart();
  }

  getChartLayoutInterface() {
    const { box, range } = this.plot ? this.area() : this.last;
    return {
      getChartAreaBoundingBox: () => box,
      getHAxisValue: (px) => valueAt(px, box, range),
    };
  }
}

// --- time lines -----------------------------------------------------------------------------

const NAME_PX = 40; // a bar that is narrower has no name in it

/** Columns: the lane's name, the bar's, its tooltip, begin and end. There may be tens of thousands
 * of bars, so that all of a colour are one path. */
class Timeline extends Chart {
  figure(table, options) {
    const [lane, name, , begin, end] = table.columns.map((_, column) => table.values(column));
    this.lanes = new Map(); // name → its rows, by their begin
    lane.forEach((key, row) => {
      if (!this.lanes.has(key)) this.lanes.set(key, []);
      this.lanes.get(key).push(row);
    });
    for (const rows of this.lanes.values()) rows.sort((a, b) => begin[a] - begin[b]);
    Object.assign(this, { names: name, begin, end });
    const keys = [...this.lanes.keys()];
    const height = options.height ?? 50 * keys.length;
    const paths = COLORS.map(() => []);
    const colors = new Map(); // of names
    keys.forEach((key, at) => {
      for (const row of this.lanes.get(key)) {
        if (!colors.has(name[row])) colors.set(name[row], colors.size % COLORS.length);
        const path = paths[colors.get(name[row])];
        path.push(`M${begin[row]},${at - 0.4}H${end[row]}V${at + 0.4}H${begin[row]}Z`);
      }
    });
    const shapes = paths.map((path, i) => ({
      type: "path", layer: "between", path: path.join(""), fillcolor: COLORS[i],
      line: { color: COLORS[i], width: 0.5 },
    })).filter(({ path }) => path);
    const data = [{ type: "scatter", mode: "text", x: [], y: [], text: [], hoverinfo: "skip",
      textfont: { color: "#fff", size: 12 } }];
    const from = begin.reduce((least, value) => Math.min(least, value), begin[0]);
    const to = end.reduce((most, value) => Math.max(most, value), end[0]);
    const ticks = options.timeline?.showRowLabels === false ? { showticklabels: false }
      : { tickvals: keys.map((_, at) => at), ticktext: keys.map((key) => plain(key)) };
    const layout = {
      height: height + 46, margin: { l: 10, r: 10, t: 0, b: 46 }, showlegend: false, dragmode: "zoom",
      shapes, xaxis: { ...axis("Time (ms)"), fixedrange: false, zeroline: false, range: [from, to] },
      yaxis: { ...axis(), ...ticks, range: [keys.length - 0.5, -0.5], showgrid: false, zeroline: false },
    };
    this.on("ready", () => {
      this.write();
      this.plot.on("plotly_relayout", () => this.write());
      this.plot.addEventListener("mousemove", (event) => this.hover(event));
      this.plot.addEventListener("mouseleave", () => tip.remove());
    });
    return { data, layout, config: { doubleClick: "reset" } };
  }

  /** Names into the bars that are wide enough now. */
  write() {
    const { box, range } = this.area();
    const [x, y, text] = [[], [], []];
    const scale = box.width / (range[1] - range[0]);
    [...this.lanes.values()].forEach((rows, at) => {
      for (const row of rows) {
        const begin = Math.max(this.begin[row], range[0]);
        const end = Math.min(this.end[row], range[1]);
        const px = (end - begin) * scale;
        if (px < NAME_PX) continue;
        x.push((begin + end) / 2);
        y.push(at);
        text.push(plain(this.names[row], Math.floor(px / CHARACTER_PX) - 1));
      }
    });
    this.plotly("restyle", { x: [x], y: [y], text: [text] }, [0]);
  }

  hover(event) {
    const { box, range } = this.area();
    const { left, top } = this.plot.getBoundingClientRect();
    const at = Math.floor(((event.clientY - top - box.top) / box.height) * this.lanes.size);
    const ms = valueAt(event.clientX - left, box, range);
    const near = (2 * (range[1] - range[0])) / box.width; // two pixels: many bars are narrower
    const rows = [...this.lanes.values()][at] ?? [];
    const row = rows[firstAfter(rows, (row) => this.begin[row] > ms + near) - 1];
    if (row !== undefined && ms <= this.end[row] + near) {
      showTip(this.tooltip({ row, column: 1 }), event);
    } else {
      tip.remove();
    }
  }
}

// --- tables ---------------------------------------------------------------------------------

class Table {
  constructor(container) { this.container = container; }

  draw(table, options = {}) {
    Object.assign(this, { table, options, first: 0 });
    const { sortColumn, sortAscending = true } = options;
    this.sorted = sortColumn >= 0 ? { column: sortColumn, ascending: sortAscending } : undefined;
    this.order = table.rows.map((_, row) => row);
    const root = element("div", "gc");
    const scroll = element("div", "gc-scroll");
    if (options.height === "100%") scroll.style.maxHeight = this.#room();
    const made = element("table", "");
    this.head = made.createTHead().insertRow();
    this.body = made.createTBody();
    table.columns.forEach((column, index) => {
      const header = element("th", this.#class(index));
      header.scope = "col";
      const button = element("button", "", column.label ?? "");
      button.type = "button";
      button.addEventListener("click", () => this.#sort(index));
      header.append(button);
      this.head.append(header);
    });
    scroll.append(made);
    root.append(scroll);
    if (options.page === "enable" && table.rows.length > options.pageSize) root.append(this.#pages());
    this.container.replaceChildren(root);
    this.#fill();
  }

  /** The height that the page set aside; none where the table may be as high as it is. */
  #room() {
    this.container.replaceChildren();
    const { parentElement: parent } = this.container;
    const held = parent.style.height; // for the time of drawing
    parent.style.height = "";
    const px = parent.clientHeight;
    parent.style.height = held;
    return px ? `${px}px` : "";
  }

  #class(column) { return this.table.columns[column].type === "number" ? "gc-n" : ""; }

  #sort(column) {
    const ascending = this.sorted?.column === column ? !this.sorted.ascending : true;
    Object.assign(this, { sorted: { column, ascending }, first: 0 });
    this.#fill();
  }

  #pages() {
    const pages = element("div", "gc-pages");
    this.status = element("span", "");
    this.status.setAttribute("role", "status");
    this.turns = [["‹ Previous", -1], ["Next ›", 1]].map(([label, by]) => {
      const button = element("button", "", label);
      button.type = "button";
      button.addEventListener("click", () => {
        this.first += by * this.options.pageSize;
        this.#fill();
      });
      return button;
    });
    pages.append(...this.turns, this.status);
    return pages;
  }

  #fill() {
    [...this.head.cells].forEach((header, index) => {
      const order = this.sorted?.ascending ? "ascending" : "descending";
      if (index === this.sorted?.column) header.setAttribute("aria-sort", order);
      else header.removeAttribute("aria-sort");
    });
    if (this.sorted) {
      const { column, ascending } = this.sorted;
      const values = this.table.values(column);
      const sign = ascending ? 1 : -1;
      this.order.sort((a, b) => sign * compare(values[a], values[b]) || a - b);
    }
    const until = this.status ? this.first + this.options.pageSize : this.order.length;
    const shown = this.order.slice(this.first, until);
    this.body.replaceChildren(...shown.map((row) => this.#row(row)));
    if (!this.status) return;
    const { length } = this.order;
    this.status.textContent = `${this.first + 1}–${Math.min(until, length)} of ${length}`;
    this.turns[0].disabled = !this.first;
    this.turns[1].disabled = until >= length;
  }

  #row(row) {
    const made = element("tr", "");
    this.table.rows[row].forEach((cell, column) => {
      const shown = element("td", this.#class(column));
      if (LONG_WORD.test(textOf(cell))) shown.classList.add("gc-long");
      if (this.options.allowHtml) {
        shown.innerHTML = textOf(cell);
        shown.style.cssText = this.table.getProperty(row, column, "style") ?? "";
      } else {
        shown.textContent = textOf(cell);
      }
      made.append(shown);
    });
    return made;
  }
}

/** Nothing comes before everything. */
function compare(a, b) {
  if (a == null || b == null) return (a != null) - (b != null);
  if (typeof a === "number" && typeof b === "number") return a - b;
  return a < b ? -1 : a > b ? 1 : 0;
}

// --- under Google's names -------------------------------------------------------------------

function load() {
  const style = document.createElement("style");
  style.textContent = STYLE;
  const script = document.createElement("script");
  script.src = "plotly.min.js";
  document.head.append(style, script);
  return new Promise((done) => {
    script.onload = done;
    script.onerror = done; // the tables need no plotly
  });
}

window.google = {
  charts: { load },
  visualization: {
    DataTable, arrayToDataTable, PieChart, ColumnChart, SteppedAreaChart, ComboChart, LineChart,
    Timeline, Table,
    events: { addListener: (chart, name, handler) => chart.on(name, handler) },
  },
};
})();
