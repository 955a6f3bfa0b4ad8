// A form in use is never re-rendered: new cards are inserted around it. The number in the title follows the count.
(function () {
  "use strict";
  const fields = "input:not([type=hidden]), textarea, select";
  const isTyped = (field) => "defaultValue" in field && field.value !== field.defaultValue;
  const isInUse = (node) => node.contains(document.activeElement) && document.activeElement.matches(fields)
    || [...node.querySelectorAll(fields)].some(isTyped);

  function insertAround(kept, place, html) {
    const fresh = [...new DOMParser().parseFromString(html, "text/html").body.children];
    for (const card of [...place.children]) { if (!kept.includes(card)) { card.remove(); } }
    let anchor = place.firstElementChild;
    for (const card of fresh) {
      const same = kept.find((other) => other.id && other.id === card.id);
      if (same) { anchor = same.nextElementSibling; } else { place.insertBefore(card, anchor); }
    }
    for (const card of kept) {
      if (!fresh.some((other) => other.id === card.id && other.querySelector("form"))) { markAnswered(card); }
    }
  }

  function markAnswered(card) {
    const note = document.createElement("p");
    note.className = "warning";
    note.setAttribute("role", "alert");
    note.textContent = "This request no longer waits: it was answered or has expired.";
    card.querySelector(".answers, form").replaceWith(note);
  }

  document.addEventListener("htmx:beforeSwap", function (event) {
    const place = event.detail.target;
    const kept = [...place.children].filter(isInUse);
    if (!kept.length || event.detail.xhr.status >= 400) { return; }
    event.detail.shouldSwap = false;
    insertAround(kept, place, event.detail.serverResponse);
  });

  document.addEventListener("keydown", function (event) {
    if (event.key === "/" && !event.ctrlKey && !event.metaKey && !event.target.matches(fields)) {
      event.preventDefault();
      document.querySelector(".find input").focus();
    }
  });

  document.addEventListener("htmx:afterSwap", function () {
    const count = document.querySelector("nav .count");
    document.title = (count ? "(" + count.textContent + ") " : "") + document.title.replace(/^\(\d+\) /, "");
  });
})();

// Charts on a guest's page. Everything else works without scripts, or is htmx.
(function () {
  "use strict";
  const place = document.getElementById("charts");
  if (!place || !window.drawLoad) { return; }
  const accent = getComputedStyle(document.documentElement).getPropertyValue("--accent").trim();
  function draw(load) {
    place.replaceChildren();
    const boxes = load.charts.map((chart) => [chart, place.appendChild(document.createElement("div"))]);
    for (const [chart, box] of boxes) {
      const lines = chart.lines.map((line, number) => ({ ...line, stroke: number ? "#c4742f" : accent }));
      drawLoad(box, chart.title, 180, load.times, lines, chart.top);
    }
    if (!place.childElementCount) { place.textContent = "No data for this time frame."; }
  }

  async function load(timeframe) {
    const given = new URLSearchParams({ timeframe: timeframe });
    if (place.dataset.cluster) { given.set("cluster", place.dataset.cluster); }
    const answer = await fetch(place.dataset.series + "?" + given, { headers: { Accept: "application/json" } });
    if (answer.ok) { draw(await answer.json()); } else { place.textContent = "The load cannot be read."; }
  }

  for (const button of document.querySelectorAll("[data-timeframe]")) {
    button.addEventListener("click", function () {
      for (const one of document.querySelectorAll("[data-timeframe]")) { one.setAttribute("aria-pressed", one === button); }
      load(button.dataset.timeframe);
    });
  }
  load("hour");
})();
