"use strict";
// The two plots of a pair: pool tokens and free memory against the fraction, on one axis, with the advice over them.
(() => {
  const { tokens, figure, gib, colour, ratio, label, rule, stamp, save } = globalThis.kvyieldMarks;
  const DAY = new Intl.DateTimeFormat(undefined, { year: "numeric", month: "short", day: "numeric", timeZoneName: "short" });
  let plots = [];
  let curve = null;
  let advice = null;
  let line = { fraction: [0, 1], pool: null, free: null };

  const read = (id) => { const node = document.getElementById(id); return node ? JSON.parse(node.textContent) : null; };
  // LMDeploy takes a fraction up to 1 or a count of blocks above it: an axis has the one or the other.
  const isOnAxis = (fraction) => typeof fraction === "number" && fraction > 1.02 === line.fraction.at(-1) > 1.02;

  function xRange() {
    const known = [...line.fraction, ...curve.starts.map((s) => s.fraction)];
    if (advice) known.push(advice.advised, advice.running, ...(advice.window || []));
    const inside = known.filter(isOnAxis);
    return [Math.min(...inside), Math.max(...inside)];
  }

  function yRange(values, padding, above) {
    const known = values.filter((v) => v != null && Number.isFinite(v));
    if (!known.length) return [0, 1];
    const high = Math.max(...known, 1e-9), low = Math.min(...known, 0);
    return [low < 0 ? low - (high - low) * padding : 0, high + (high - low) * above];
  }

  function atCursor(fraction, which) {
    const found = line.fraction.findIndex((f) => f >= fraction - 1e-9), at = Math.max(1, found), band = line[which];
    if (!band || found < 0 || fraction < line.fraction[0] - 1e-9 || band.median[at] == null || band.median[at - 1] == null) return null;
    const share = (fraction - line.fraction[at - 1]) / (line.fraction[at] - line.fraction[at - 1]);
    const between = (values) => values[at - 1] + share * (values[at] - values[at - 1]);
    return { median: between(band.median), low: between(band.low), high: between(band.high) };
  }

  function under(u) {
    if (!advice || !advice.window || !isOnAxis(advice.window[0])) return;
    const { left, top, width, height } = u.bbox;
    const from = Math.max(left, u.valToPos(advice.window[0], "x", true));
    const to = Math.min(left + width, u.valToPos(advice.window[1], "x", true));
    u.ctx.fillStyle = colour("--window");
    u.ctx.fillRect(from, top, Math.max(to - from, 2 * ratio()), height);
  }

  const ROW = 17;

  // The two labels stand in rows of their own above everything, on the side where no line crosses them: the line of the
  // lower label begins below the upper one.
  function placed(u, lines) {
    const { left, width } = u.bbox, r = ratio(), gap = 6 * r;
    u.ctx.font = `${12 * r}px system-ui, sans-serif`;
    const sized = lines.map((each) => ({ ...each, x: u.valToPos(each.fraction, "x", true), wide: u.ctx.measureText(each.text).width + gap }));
    const inside = sized.filter((each) => each.x >= left - 1 && each.x <= left + width + 1).sort((one, other) => one.x - other.x);
    const fitsRight = (each) => each.x + each.wide <= left + width, fitsLeft = (each) => each.x - each.wide >= left;
    if (inside.length < 2) return inside.map((each) => ({ ...each, row: 0, side: fitsRight(each) ? 1 : -1 }));
    const [first, second] = inside;
    if (fitsRight(second)) return [{ ...first, row: 0, side: 1 }, { ...second, row: 1, side: 1 }];
    if (fitsLeft(first)) return [{ ...second, row: 0, side: -1 }, { ...first, row: 1, side: -1 }];
    return [{ ...first, row: 0, side: 1 }, { ...second, row: 1, side: -1 }];
  }

  function verticals(u, isPool) {
    const { top, height } = u.bbox, r = ratio(), known = [];
    if (advice.advised != null) known.push({ fraction: advice.advised, ink: colour("--accent"), dash: [], text: `advised ${advice.advised}` });
    if (advice.running != null && advice.running !== advice.advised) known.push({ fraction: advice.running, ink: colour("--muted"), dash: [2, 3], text: `${advice.ended ? "ran" : "running"} ${advice.running}` });
    const lines = placed(u, known);
    for (const each of lines) rule(u, [each.x, top + (isPool ? each.row * ROW * r : 0)], [each.x, top + height], each.ink, each.dash, 1.25);
    if (!isPool) return;
    for (const each of lines) label(u.ctx, each.text, each.x + each.side * 6 * r, top + (ROW * (each.row + 1) - 1) * r, each.ink, each.side > 0 ? "left" : "right");
    u.root.dataset.labels = JSON.stringify(lines.map((each) => ({ text: each.text, x: each.x, from: each.side > 0 ? each.x : each.x - each.wide, to: each.side > 0 ? each.x + each.wide : each.x, row: each.row })));
  }

  function horizontal(u, value, ink, dash, text, short) {
    const { left, top, width, height } = u.bbox, y = u.valToPos(value, "y", true), r = ratio();
    if (y < top - 1 || y > top + height + 1) return;
    rule(u, [left, y], [left + width, y], ink, dash, 1.25);
    u.ctx.font = `${12 * r}px system-ui, sans-serif`;
    const said = u.ctx.measureText(text).width + 16 * r > width ? short : text;
    label(u.ctx, said, left + 8 * r, y - top < (3 * ROW + 1) * r ? y + 17 * r : y - 3 * r, ink);
  }

  function over(which) {
    return (u) => {
      const c = u.ctx, { left, top, width, height } = u.bbox;
      c.save();
      c.beginPath();
      c.rect(left, top, width, height);
      c.clip();
      const isPool = which === "pool";
      if (advice) {
        if (isPool && advice.target != null) horizontal(u, advice.target, colour("--ink"), [6, 4], `target ${tokens(advice.target)} tokens`, "target");
        if (!isPool && advice.need) need(u);
        verticals(u, isPool);
      }
      c.restore();
      if (!line[which] && !curve.starts.some((start) => place(u, start, which))) label(c, "nothing measured or predicted", left + width / 2, top + height / 2, colour("--muted"), "center");
      for (const start of curve.starts) mark(u, start, which);
    };
  }

  function need(u) {
    const [low, median, high] = advice.need, { left, width } = u.bbox, c = u.ctx;
    const top = u.valToPos(high, "y", true), bottom = u.valToPos(low, "y", true);
    c.fillStyle = colour("--need");
    c.fillRect(left, top, width, Math.max(bottom - top, 1));
    horizontal(u, median, colour("--amber"), [6, 4], `a prompt of ${tokens(advice.target)} tokens needs ${gib(median)}`, `needs ${gib(median)}`);
  }

  function place(u, start, which) {
    if (!isOnAxis(start.fraction)) return null;
    const value = which === "pool" ? start.pool : start.free;
    if (value == null && (start.outcome === "ready" || which === "free")) return null;
    return [u.valToPos(start.fraction, "x", true), u.valToPos(value == null ? u.scales.y.min : value, "y", true)];
  }

  function mark(u, start, which) {
    const at = place(u, start, which);
    if (!at) return;
    stamp(u.ctx, which === "free" && start.bound ? "bound" : start.outcome, at[0], at[1]);
  }

  function nearest(u, left, top, which) {
    let best = null, distance = 14;
    for (const start of curve.starts) {
      const at = place(u, start, which);
      if (!at) continue;
      const d = Math.hypot((at[0] - u.bbox.left) / ratio() - left, (at[1] - u.bbox.top) / ratio() - top);
      if (d < distance) [best, distance] = [start, d];
    }
    return best;
  }

  function told(fraction) {
    const pool = atCursor(fraction, "pool"), free = atCursor(fraction, "free");
    return [
      [curve.flag, String(+fraction.toFixed(4))],
      ["predicted pool", pool ? `${tokens(pool.median)} tokens (90 %: ${tokens(pool.low)} to ${tokens(pool.high)})` : "not known"],
      ["predicted free memory at ready", free ? `${gib(free.median)} (90 %: ${figure(free.low, 1)} to ${figure(free.high, 1)})` : "not known"],
    ];
  }

  function show(rows, start) {
    const box = document.getElementById("readout");
    const nodes = rows.map(([name, value]) => {
      const entry = document.createElement("div"), strong = document.createElement("b");
      strong.textContent = value;
      entry.append(`${name} `, strong);
      return entry;
    });
    if (start) {
      const entry = document.createElement("div"), strong = document.createElement("b");
      strong.textContent = `${start.fraction}: ${start.pool == null ? "no pool" : `${tokens(start.pool)} tokens`}, ${start.free == null ? "free memory not known" : `${start.bound ? "at most " : ""}${gib(start.free, 2)} free at ready${start.bound ? " (measured at pool end, before graphs)" : ""}`}`;
      entry.append(`start, ${start.word}, ${DAY.format(new Date(start.at))}: `, strong);
      nodes.push(entry);
    }
    box.replaceChildren(...nodes);
  }

  function hovered(which) {
    return (u) => {
      const { left, top } = u.cursor;
      if (left == null || left < 0 || !u.over.matches(":hover")) return;
      const start = nearest(u, left, top, which);
      u.over.classList.toggle("on-start", Boolean(start));
      u.root.dataset.start = start ? start.id : "";
      show(told(u.posToVal(left, "x")), start);
    };
  }

  function options(which, node, height) {
    const ink = colour("--muted"), grid = { stroke: colour("--faint"), width: 1 }, ticks = { stroke: colour("--line"), width: 1, size: 4 };
    const isPool = which === "pool", font = "12px system-ui, sans-serif", band = line[which];
    const measured = curve.starts.map((s) => (isPool ? s.pool : s.free));
    const most = Math.max(1, ...curve.starts.map((s) => s.pool || 0), ...(line.pool ? line.pool.high : []), (advice && advice.target) || 0);
    const none = { show: false };
    return {
      width: node.clientWidth, height,
      legend: { show: false },
      padding: [8, 18, 0, 0],
      scales: {
        x: { time: false, range: () => xRange() },
        y: { range: () => yRange([...(band ? band.high : []), ...(band && !isPool ? band.low : []), ...measured, ...(advice ? (isPool ? [advice.target] : [...(advice.need || [])].slice(0, 2)) : [])], 0.06, isPool ? 0.18 : 0.06) },
      },
      axes: [
        { stroke: ink, grid, ticks, font, size: isPool ? 26 : 24, label: isPool ? undefined : curve.flag, labelFont: font, labelSize: 20, labelGap: 0, values: (u, all) => all.map((v) => +v.toFixed(4)), space: 60 },
        { stroke: ink, grid, ticks, font, size: tokens(most).length * 7 + 14, values: (u, all) => all.map((v) => (isPool ? tokens(v) : +v.toFixed(2))) },
      ],
      series: [{}, ...[colour("--accent"), "transparent", "transparent"].map((stroke) => ({ stroke, width: 1.75, points: none, pxAlign: 0 }))],
      bands: [{ series: [3, 2], fill: colour("--band") }],
      cursor: { sync: { key: "fraction", scales: ["x", null] }, points: { show: false }, drag: { x: false, y: false }, focus: { prox: -1 } },
      hooks: { drawClear: [under], draw: [over(which)], setCursor: [hovered(which)] },
    };
  }

  function data(which) {
    const empty = line.fraction.map(() => null), band = line[which];
    return [line.fraction, ...(band ? [band.median, band.low, band.high] : [empty, empty, empty])];
  }

  function draw() {
    for (const plot of plots) plot.destroy();
    plots = [["pool", 320], ["free", 210]].flatMap(([which, height]) => {
      const node = document.getElementById(`plot-${which}`);
      if (!node) return [];
      const plot = new uPlot(options(which, node, height), data(which), node);
      plot.over.addEventListener("click", () => { if (plot.root.dataset.start) location.assign(`/ui/observations/${plot.root.dataset.start}`); });
      return [plot];
    });
    document.documentElement.dataset.plots = String(plots.length);
  }

  function step(node, event) {
    const count = line.fraction.length, jump = { ArrowLeft: -1, ArrowRight: 1, ArrowDown: -1, ArrowUp: 1, PageDown: -10, PageUp: 10, Home: -count, End: count }[event.key];
    if (!jump) return;
    event.preventDefault();
    const at = Math.min(count - 1, Math.max(0, Number(node.dataset.at || Math.floor(count / 2)) + jump));
    const fraction = line.fraction[at], rows = told(fraction);
    node.dataset.at = at;
    node.setAttribute("aria-valuenow", fraction);
    node.setAttribute("aria-valuetext", rows.map((row) => row.join(" ")).join(", "));
    for (const plot of plots) plot.setCursor({ left: plot.valToPos(fraction, "x"), top: 10 });
    show(rows, null);
  }

  function take() {
    advice = read("advice-data");
    if (advice) line = advice.line;
    const stage = document.getElementById("stage");
    stage.setAttribute("aria-valuemin", line.fraction[0]);
    stage.setAttribute("aria-valuemax", line.fraction.at(-1));
    draw();
    const known = line.fraction;
    const wanted = advice && [advice.advised, advice.running].find((f) => typeof f === "number");
    const first = wanted != null ? wanted : known[Math.floor(known.length / 2)];
    for (const item of document.querySelectorAll("[data-asked-only]")) item.hidden = !advice || advice.target == null;
    stage.setAttribute("aria-valuenow", first);
    show(told(first), null);
  }

  function begin() {
    curve = read("curve-data");
    if (!curve || typeof uPlot === "undefined") return;
    take();
    const stage = document.getElementById("stage");
    document.getElementById("save").addEventListener("click", () => save(plots, curve.starts));
    stage.addEventListener("keydown", (event) => step(stage, event));
    new ResizeObserver(() => {
      for (const plot of plots) plot.setSize({ width: plot.root.parentElement.clientWidth, height: plot.height });
    }).observe(stage);
    matchMedia("(prefers-color-scheme: dark)").addEventListener("change", draw);
  }

  document.addEventListener("DOMContentLoaded", begin);
  document.addEventListener("htmx:afterSettle", (event) => {
    if (curve && event.target.id === "answer" && document.getElementById("advice-data")) take();
  });
})();
