// A view inside an MCP client: the handshake with the client, then the answer as a card, a chart or the map.
(function () {
  "use strict";
  const place = document.getElementById("view");
  const waiting = new Map();
  let last = 0;
  let given = {};

  function send(message) { parent.postMessage({ jsonrpc: "2.0", ...message }, "*"); }
  function request(method, params) {
    const id = ++last;
    send({ id: id, method: method, params: params });
    return new Promise((done, failed) => waiting.set(id, { done: done, failed: failed }));
  }
  function call(tool, more) {
    return request("tools/call", { name: tool, arguments: { ...given, ...more } });
  }

  addEventListener("message", function (event) {
    const message = event.data;
    if (event.source !== parent || !message || message.jsonrpc !== "2.0") { return; }
    if (message.method === "ui/notifications/tool-input") { given = message.params.arguments || {}; }
    else if (message.method === "ui/notifications/tool-result") { show(message.params); }
    else if (message.method === "ui/resource-teardown") { send({ id: message.id, result: {} }); }
    else if (message.method === "ping") { send({ id: message.id, result: {} }); }
    else if (waiting.has(message.id)) {
      const one = waiting.get(message.id);
      waiting.delete(message.id);
      if (message.error) { one.failed(new Error(message.error.message)); } else { one.done(message.result); }
    }
  });

  // -- building the page: text is only ever inserted as text ----------------------------------------------------------

  function add(parent, tag, text, name) {
    const made = document.createElement(tag);
    if (text !== undefined) { made.textContent = text; }
    if (name) { made.className = name; }
    return parent.appendChild(made);
  }
  function list(parent, tag, title, lines, name) {
    if (!lines || !lines.length) { return; }
    add(parent, "h3", title);
    const made = add(parent, tag, undefined, name);
    for (const line of lines) { add(made, "li", line); }
  }
  function words(value) { return typeof value === "object" ? JSON.stringify(value) : String(value); }

  function plan(facts) {
    const card = add(place, "article", undefined, "card" + (facts.lost ? " final" : ""));
    add(card, "h2", facts.plan || facts.result || "Result");
    if (facts.plan && facts.result) { add(card, "p", facts.result, "meta"); }
    list(card, "ul", "What will be lost", facts.lost, "lost");
    list(card, "ul", "Warnings", facts.warnings, "warnings");
    const steps = facts.steps || [];
    list(card, "ol", "Steps", steps.map((one) => [one.state, one.step, one.call].filter(Boolean).join(" · ")), "steps");
    const known = new Set(["plan", "result", "lost", "warnings", "steps", "next"]);
    const facts_list = add(card, "dl", undefined, "facts");
    for (const [name, value] of Object.entries(facts)) {
      if (known.has(name) || value === null || value === "") { continue; }
      const row = add(facts_list, "div");
      add(row, "dt", name.replaceAll("_", " "));
      add(row, "dd", words(value));
    }
    if (facts.next) { add(card, "p", facts.next, "hint"); }
  }

  async function chart() {
    delete given.chart;
    delete given.timezone;
    const answer = await call("metrics_get", { points: 120 });
    const facts = answer.structuredContent || {};
    const points = facts.points;
    if (!points || !points.rows.length) { add(place, "p", "No data.", "empty"); return; }
    add(place, "h2", facts.of || "Load");
    const times = points.rows.map((row) => Date.parse(row[0].replace(" ", "T")) / 1000);
    points.columns.slice(1).forEach(function (name, at) {
      const values = points.rows.map((row) => row[at + 1]);
      drawLoad(add(place, "div"), name, 160, times, [{ label: name, stroke: "#3b82c4", values: values }]);
    });
  }

  async function map(facts) {
    const svg = facts.svg || ((await call("network_map", { format: "svg" })).structuredContent || {}).svg;
    if (!svg) { add(place, "p", "The map is empty.", "empty"); return; }
    const picture = add(place, "img", undefined, "map wide");
    picture.alt = "Map of the network";
    picture.src = "data:image/svg+xml;base64," + btoa(String.fromCharCode(...new TextEncoder().encode(svg)));
    picture.addEventListener("load", resize);
  }

  async function show(answer) {
    const facts = answer.structuredContent || {};
    place.replaceChildren();
    try {
      if (answer.isError) {
        add(place, "p", (answer.content || []).map((one) => one.text || "").join("\n"), "warning pre");
      } else if (place.dataset.view === "chart") { await chart(); }
      else if (place.dataset.view === "map") { await map(facts); }
      else { plan(facts); }
    } catch (problem) { add(place, "p", String(problem.message || problem), "warning"); }
    resize();
  }

  function resize() {
    const box = document.documentElement.getBoundingClientRect();
    send({ method: "ui/notifications/size-changed", params: { width: Math.ceil(box.width), height: Math.ceil(box.height) } });
  }

  request("ui/initialize", {
    protocolVersion: "2026-01-26",
    appInfo: { name: "quorate-" + place.dataset.view, version: "1" },
    appCapabilities: {},
  }).then(function (host) {
    const theme = host && host.hostContext && host.hostContext.theme;
    if (theme === "light" || theme === "dark") { document.documentElement.style.colorScheme = theme; }
    send({ method: "ui/notifications/initialized", params: {} });
  });
})();
