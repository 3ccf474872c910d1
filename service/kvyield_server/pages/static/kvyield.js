"use strict";
// Small things on every page: times in the reader's zone, copy buttons, choosing two starts, what a swap announces.
(() => {
  const zone = new Intl.DateTimeFormat(undefined, { year: "numeric", month: "short", day: "numeric", hour: "2-digit", minute: "2-digit", second: "2-digit", timeZoneName: "short" });

  function localiseTimes(root) {
    for (const time of root.querySelectorAll("time[datetime]:not([data-local])")) {
      const at = new Date(time.dateTime);
      if (Number.isNaN(at.valueOf())) continue;
      time.title = time.textContent;
      time.textContent = zone.format(at);
      time.dataset.local = "";
    }
  }

  function nameZone() {
    const at = document.getElementById("zone");
    if (at) at.textContent = `Times in ${zone.resolvedOptions().timeZone}`;
  }

  async function write(text) {
    if (navigator.clipboard && window.isSecureContext) return navigator.clipboard.writeText(text);
    const area = Object.assign(document.createElement("textarea"), { value: text, className: "vh" });
    document.body.append(area);
    area.select();
    const done = document.execCommand("copy");
    area.remove();
    if (!done) throw new Error("not copied");
  }

  async function copy(button) {
    const before = button.dataset.label || button.textContent;
    button.dataset.label = before;
    try {
      await write(document.getElementById(button.dataset.copy).textContent.trim());
      button.textContent = "Copied";
    } catch {
      button.textContent = "Select and copy";
    }
    setTimeout(() => { button.textContent = before; }, 1600);
  }

  function countChosen() {
    const chosen = document.querySelectorAll("input[name=start]:checked").length;
    const button = document.getElementById("compare");
    if (!button) return;
    button.disabled = chosen !== 2;
    const hint = document.getElementById("compare-hint");
    if (hint) hint.textContent = ["Choose two starts to compare.", "Choose one more.", "", "Choose only two."][Math.min(chosen, 3)];
  }

  function keepFormat(root) {
    const wanted = sessionStorage.getItem("kvyield-format");
    const radio = wanted && root.querySelector(`input[name=format][value="${CSS.escape(wanted)}"]`);
    if (radio) radio.checked = true;
  }

  // A flag in a sentence is not torn at its hyphens.
  function keepFlagsWhole(root) {
    for (const sentence of root.querySelectorAll(".headline")) {
      const node = sentence.querySelector("bdi") || sentence;
      if (node.childElementCount) continue;
      const parts = node.textContent.split(/(--[a-z][\w-]*)/);
      node.replaceChildren(...parts.map((part, at) => (at % 2 ? Object.assign(document.createElement("span"), { className: "flag", textContent: part }) : part)));
    }
  }

  function prepare(root) {
    localiseTimes(root);
    keepFlagsWhole(root);
    keepFormat(root);
    countChosen();
    for (const button of root.querySelectorAll("[data-without-script]")) button.hidden = true;
  }

  document.addEventListener("click", (event) => {
    const button = event.target.closest("button[data-copy]");
    if (button) copy(button);
  });
  document.addEventListener("change", (event) => {
    const field = event.target;
    if (field.name === "start") countChosen();
    if (field.name === "format") sessionStorage.setItem("kvyield-format", field.value);
    if (field.matches("[data-submits]")) field.form.requestSubmit();
  });
  document.addEventListener("htmx:afterSettle", (event) => {
    prepare(event.target.isConnected ? event.target : document);
    const said = document.getElementById("said");
    const news = document.querySelector("[data-announce]");
    if (said && news) said.textContent = news.dataset.announce;
  });
  // Before the first question, a change of the form asks nothing: only Advise does.
  document.addEventListener("htmx:configRequest", (event) => {
    const cause = event.detail.triggeringEvent;
    if (event.target.id === "ask" && cause && cause.type === "change" && !document.querySelector("#answer[data-asked]")) event.preventDefault();
  });
  document.addEventListener("DOMContentLoaded", () => { prepare(document); nameZone(); });
})();
