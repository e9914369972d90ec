/* The dashboard's own script: times in the viewer's zone, theme, keys, charts, live tail. It writes what others
   wrote by textContent only. */
"use strict";

(() => {
  const $ = (selector, within = document) => within.querySelector(selector);
  const $$ = (selector, within = document) => [...within.querySelectorAll(selector)];

  // --- times ---
  const format = new Intl.DateTimeFormat(undefined, {
    year: "numeric", month: "2-digit", day: "2-digit", hour: "2-digit", minute: "2-digit", second: "2-digit",
  });
  const zone = Intl.DateTimeFormat().resolvedOptions().timeZone;
  function showTimes(within) {
    for (const element of $$("time[datetime]", within)) {
      const at = new Date(element.dateTime);
      if (!Number.isNaN(at.getTime())) {
        element.textContent = format.format(at);
        element.title = `${element.dateTime} (shown in ${zone})`;
      }
    }
  }

  // A form's local date and time goes to the server as ms since 1970, in the hidden field beside it.
  function joinTimes() {
    for (const input of $$("input[data-ms-for]")) {
      const hidden = $(`input[name="${input.dataset.msFor}"]`, input.form);
      const write = () => { hidden.value = input.value ? String(new Date(input.value).getTime()) : ""; };
      if (hidden.value && Number(hidden.value)) {
        const at = new Date(Number(hidden.value));
        input.value = new Date(at.getTime() - at.getTimezoneOffset() * 60000).toISOString().slice(0, 19);
      }
      input.addEventListener("input", write);
      input.form.addEventListener("submit", () => { if (input.value) write(); });
    }
  }

  // --- theme ---
  function setTheme(theme) {
    document.documentElement.dataset.theme = theme;
    document.cookie = `rmq-theme=${theme}; path=/; max-age=31536000; samesite=strict`;
    for (const chart of $$(".chart[data-figures]")) drawChart(chart);
  }
  function toggleTheme() {
    const now = document.documentElement.dataset.theme;
    const dark = now === "dark" || (now === "auto" && matchMedia("(prefers-color-scheme: dark)").matches);
    setTheme(dark ? "light" : "dark");
  }

  // --- charts ---
  const drawn = new WeakMap();
  function color(name) { return getComputedStyle(document.documentElement).getPropertyValue(name).trim(); }
  function sizeOf(element) { return { width: Math.max(element.clientWidth, 200), height: 170 }; }
  function axisWidth(_, labels) { return Math.max(62, 20 + 7 * Math.max(0, ...(labels ?? []).map((label) => label.length))); }
  async function drawChart(element) {
    const figures = element.dataset.figures.split(";").map((one) => one.split("|"));
    const hours = $("#hours") ? $("#hours").value : "1";
    let answers;
    try {
      answers = await Promise.all(figures.map(async ([figure, subject]) => {
        const query = new URLSearchParams({ figure, subject: decodeURIComponent(subject), hours });
        const answer = await fetch(`${element.dataset.api}/history?${query}`);
        if (!answer.ok) throw new Error(String(answer.status));
        return answer.json();
      }));
    } catch { return; }
    const times = [...new Set(answers.flatMap((one) => one.times))].sort((a, b) => a - b);
    if (drawn.has(element)) { drawn.get(element).destroy(); drawn.delete(element); }
    const empty = $(".chart-empty", element);
    if (times.length < 2) { if (empty) empty.hidden = false; return; }
    if (empty) empty.hidden = true;
    const steps = times.slice(1).map((at, index) => at - times[index]).sort((a, b) => a - b);
    const longest = 6 * steps[Math.floor(steps.length / 2)];
    const shown = times.flatMap((at, index) => (index && at - times[index - 1] > longest ? [at - 1, at] : [at]));
    const data = [shown.map((at) => at / 1000)];
    for (const one of answers) {
      const known = new Map(one.times.map((at, index) => [at, one.values[index]]));
      data.push(shown.map((at) => known.get(at) ?? null));
    }
    const axis = { stroke: color("--muted"), grid: { stroke: color("--line"), width: 1 }, ticks: { show: false }, font: "12px system-ui" };
    const number = new Intl.NumberFormat(undefined, { maximumFractionDigits: 2 });
    const series = figures.map(([, , label], index) => ({
      label, stroke: color(`--chart-${index + 1}`), width: 2, points: { show: false },
      value: (_, value) => (value == null ? "-" : number.format(value)),
    }));
    const options = {
      ...sizeOf(element), cursor: { y: false },
      scales: { y: { range: (_, low, high) => [0, high > 0 ? high * 1.1 : 1] } },
      axes: [axis, { ...axis, size: axisWidth, values: (_, values) => values.map((value) => number.format(value)) }],
      series: [{ value: (_, at) => (at == null ? "-" : format.format(new Date(at * 1000))) }, ...series],
    };
    drawn.set(element, new uPlot(options, data, element));
  }
  function fitCharts() { for (const element of $$(".chart[data-figures]")) drawn.get(element)?.setSize(sizeOf(element)); }
  function drawCharts() { for (const element of $$(".chart[data-figures]")) drawChart(element); }

  // --- live tail ---
  const KEPT = 200;
  function startTail(box) {
    const rows = $("tbody", box), state = $(".live-state", box), button = $("[data-act=pause]", box);
    let source = null;
    function stop(text) { if (source) source.close(); source = null; state.classList.remove("on"); state.textContent = text; button.textContent = "Start"; }
    function start() {
      const query = new URLSearchParams(new FormData($("form", box)));
      source = new EventSource(`${box.dataset.tail}?${query}`);
      state.textContent = "waiting for messages"; button.textContent = "Stop";
      source.onopen = () => { state.classList.add("on"); };
      source.addEventListener("message", (event) => {
        const message = JSON.parse(event.data);
        const row = document.createElement("tr");
        const cells = [["time", message.stored_at], ["text", `${message.broker}/${message.queue}`], ["num", String(message.offset)],
          ["text", message.tags], ["text", message.keys], ["link", message.preview]];
        for (const [kind, value] of cells) {
          const cell = row.insertCell();
          if (kind === "time") cell.textContent = format.format(new Date(value));
          else if (kind === "link") {
            const link = document.createElement("a");
            link.href = message.href; link.textContent = value || "(empty body)"; cell.append(link); cell.className = "mono";
          } else { cell.textContent = value; if (kind === "num") cell.className = "num"; }
        }
        rows.prepend(row);
        while (rows.rows.length > KEPT) rows.deleteRow(-1);
        state.textContent = "live";
      });
      source.addEventListener("skipped", (event) => { state.textContent = `live; ${event.data} messages were not shown: too many at once`; });
      source.addEventListener("problem", (event) => stop(event.data));
      source.onerror = () => { state.classList.remove("on"); state.textContent = "connection lost; trying again"; };
    }
    button.addEventListener("click", () => { if (source) stop("stopped"); else start(); });
    $("form", box).addEventListener("submit", (event) => { event.preventDefault(); rows.replaceChildren(); stop("stopped"); start(); });
    addEventListener("pagehide", () => stop("stopped"));
    start();
  }

  // --- keys ---
  let pending = "";
  function onKey(event) {
    const typing = event.target.closest("input, textarea, select, [contenteditable]");
    if (event.key === "Escape" && typing) { typing.blur(); return; }
    if (typing || event.ctrlKey || event.metaKey || event.altKey) return;
    if (pending === "g") {
      pending = "";
      const found = $(`.nav a[data-key="${CSS.escape(event.key)}"]`);
      if (found) { event.preventDefault(); found.click(); }
      return;
    }
    if (event.key === "g") { pending = "g"; setTimeout(() => { pending = ""; }, 1500); }
    else if (event.key === "/") { const search = $("input[type=search]"); if (search) { event.preventDefault(); search.focus(); search.select(); } }
    else if (event.key === "?") { const help = $("#keys"); if (help && !help.open) help.showModal(); }
  }

  // --- lists that are read in parts ---
  let goesOn = true;
  function showGoesOn() { for (const button of $$("[data-act=more]")) button.textContent = goesOn ? "Stop" : "Go on"; }
  function beforeRequest(event) {
    if (document.hidden || (!goesOn && event.target.closest("[data-more]"))) event.preventDefault();
  }
  function onFailure(event) {
    if (event.target.closest("[data-more]")) { goesOn = false; showGoesOn(); }
  }

  // --- pages ---
  function onClick(event) {
    const act = event.target.closest("[data-act]");
    if (!act) return;
    if (act.dataset.act === "theme") toggleTheme();
    else if (act.dataset.act === "menu") {
      const open = $(".side").classList.toggle("open");
      act.setAttribute("aria-expanded", String(open));
    } else if (act.dataset.act === "more") { goesOn = !goesOn; showGoesOn(); }
    else if (act.dataset.act === "keys") $("#keys").showModal();
    else if (act.dataset.act === "copy") navigator.clipboard?.writeText(act.dataset.text).then(() => { act.textContent = "Copied"; });
    else if (act.dataset.act === "all") for (const box of $$("input[type=checkbox][name=chosen]")) box.checked = act.checked;
  }
  function onChange(event) {
    const input = event.target;
    if (input.id === "hours") drawCharts();
    if (input.dataset.go !== undefined) location.assign(input.value);
    if (input.name === "to") for (const part of $$("[data-when]")) part.hidden = part.dataset.when !== input.value;
  }
  function begin() {
    showTimes(document); joinTimes(); drawCharts();
    for (const part of $$("[data-when]")) {
      const chosen = $(`[name="to"]:checked`);
      part.hidden = !chosen || part.dataset.when !== chosen.value;
    }
    for (const box of $$("[data-tail]")) startTail(box);
    for (const box of $$("[data-reload]")) setTimeout(() => location.reload(), Number(box.dataset.reload));
    if ($(".chart[data-figures]")) setInterval(() => { if (!document.hidden) drawCharts(); }, 30000);
    matchMedia("(prefers-color-scheme: dark)").addEventListener("change", drawCharts);
    let width = innerWidth;
    addEventListener("resize", () => { if (innerWidth !== width) { width = innerWidth; fitCharts(); } });
  }
  document.addEventListener("keydown", onKey);
  document.addEventListener("click", onClick);
  document.addEventListener("change", onChange);
  document.addEventListener("htmx:after:swap", () => { showTimes(document); showGoesOn(); });
  document.addEventListener("htmx:before:request", beforeRequest);
  document.addEventListener("htmx:response:error", onFailure);
  if (document.readyState === "loading") document.addEventListener("DOMContentLoaded", begin); else begin();
})();
