"use strict";
// What the plots draw with: figures as text, one shape and colour for each outcome, lines, labels, and the whole as a picture.
globalThis.kvyieldMarks = (() => {
  const WORDS = new Intl.NumberFormat("en-US");
  const tokens = (value) => (value == null ? "—" : WORDS.format(Math.round(value)));
  // As the server writes them: measured with two decimals, predicted with one, and no idle zeros.
  const forms = [0, 1, 2].map((most) => new Intl.NumberFormat("en-US", { maximumFractionDigits: most, signDisplay: "negative" }));
  const figure = (value, digits) => forms[digits].format(value).replace("-", "−");
  const gib = (value, digits = 1) => (value == null ? "—" : `${figure(value, digits)} GiB`);
  const SHAPES = {
    ready: (c, x, y, r) => { c.arc(x, y, r, 0, 2 * Math.PI); return "fill"; },
    refused: (c, x, y, r) => { c.rect(x - r, y - r, 2 * r, 2 * r); return "stroke"; },
    oom_startup: (c, x, y, r) => { c.moveTo(x, y - 1.25 * r); c.lineTo(x + 1.15 * r, y + r); c.lineTo(x - 1.15 * r, y + r); c.closePath(); return "fill"; },
    oom_runtime: (c, x, y, r) => { c.moveTo(x, y - 1.35 * r); c.lineTo(x + 1.35 * r, y); c.lineTo(x, y + 1.35 * r); c.lineTo(x - 1.35 * r, y); c.closePath(); return "fill"; },
    bound: (c, x, y, r) => { c.moveTo(x - 1.15 * r, y - r); c.lineTo(x + 1.15 * r, y - r); c.lineTo(x, y + r); c.closePath(); return "stroke"; },
    failed: (c, x, y, r) => { c.moveTo(x - r, y - r); c.lineTo(x + r, y + r); c.moveTo(x + r, y - r); c.lineTo(x - r, y + r); return "stroke"; },
  };
  const COLOURS = { ready: "--accent", refused: "--amber", oom_startup: "--red", oom_runtime: "--plum", failed: "--muted", bound: "--accent" };
  const RADIUS = 4.5;
  const colour = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();
  const ratio = () => devicePixelRatio || 1;

  function label(c, text, x, y, ink, align) {
    const r = ratio();
    c.font = `${12 * r}px system-ui, sans-serif`;
    c.textAlign = align || "left";
    c.textBaseline = "bottom";
    c.lineWidth = 4 * r;
    c.strokeStyle = colour("--panel");
    c.lineJoin = "round";
    c.strokeText(text, x, y);
    c.fillStyle = ink;
    c.fillText(text, x, y);
  }

  function rule(u, from, to, ink, dash, width) {
    const c = u.ctx, r = ratio();
    c.beginPath();
    c.setLineDash(dash.map((d) => d * r));
    c.lineWidth = width * r;
    c.strokeStyle = ink;
    c.moveTo(...from);
    c.lineTo(...to);
    c.stroke();
    c.setLineDash([]);
  }

  function stamp(c, outcome, x, y) {
    const r = ratio(), ink = colour(COLOURS[outcome]);
    c.beginPath();
    const how = SHAPES[outcome](c, x, y, RADIUS * r);
    c.lineWidth = 1.8 * r;
    c.strokeStyle = how === "fill" ? colour("--panel") : ink;
    c.fillStyle = how === "fill" ? ink : colour("--panel");
    if (how === "fill" || outcome === "refused" || outcome === "bound") c.fill();
    c.stroke();
  }

  function save(plots, starts) {
    const r = ratio(), width = plots[0].ctx.canvas.width, head = 64 * r, gap = 22 * r;
    const canvas = Object.assign(document.createElement("canvas"), { width, height: head + plots.reduce((sum, plot) => sum + plot.ctx.canvas.height + gap, 0) });
    const c = canvas.getContext("2d");
    c.fillStyle = colour("--panel");
    c.fillRect(0, 0, canvas.width, canvas.height);
    c.fillStyle = colour("--ink");
    c.font = `600 ${15 * r}px system-ui, sans-serif`;
    c.fillText(document.querySelector("h1").textContent.trim(), 10 * r, 22 * r);
    c.font = `${12 * r}px system-ui, sans-serif`;
    c.fillText(document.getElementById("stage").dataset.subject, 10 * r, 42 * r);
    let y = head;
    for (const plot of plots) {
      const name = plot.root.parentElement.previousElementSibling.textContent;
      c.fillStyle = colour("--ink");
      c.fillText(name, 10 * r, y + 12 * r);
      c.drawImage(plot.ctx.canvas, 0, y + gap);
      y += plot.ctx.canvas.height + gap;
    }
    let x = 10 * r + c.measureText("Pool, tokens").width + 28 * r;
    for (const [outcome, word] of new Map([...starts.map((s) => [s.outcome, s.word]), ...starts.filter((s) => s.bound).map(() => ["bound", "free at pool end: an upper bound"])])) {
      stamp(c, outcome, x, head + 8 * r);
      c.fillStyle = colour("--muted");
      c.fillText(word, x + 9 * r, head + 12 * r);
      x += c.measureText(word).width + 32 * r;
    }
    canvas.toBlob((blob) => {
      const link = Object.assign(document.createElement("a"), { href: URL.createObjectURL(blob), download: "kvyield.png" });
      link.click();
      setTimeout(() => URL.revokeObjectURL(link.href), 10000);
    });
  }

  return { tokens, figure, gib, colour, ratio, label, rule, stamp, save };
})();
