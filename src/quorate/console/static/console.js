// Charts on a guest's page. Everything else works without scripts, or is htmx.
(function () {
  "use strict";
  const place = document.getElementById("charts");
  if (!place || !window.drawLoad) { return; }
  const accent = getComputedStyle(document.documentElement).getPropertyValue("--accent").trim();
  const groups = [["cpu"], ["mem"], ["netin", "netout"], ["diskread", "diskwrite"]];

  function draw(found) {
    place.replaceChildren();
    const named = found.names.map((name, at) => [name, at]);
    const boxes = groups
      .map((group) => named.filter(([name]) => group.includes(name.split(" ")[0])))
      .filter((chosen) => chosen.length)
      .map((chosen) => [chosen, place.appendChild(document.createElement("div"))]);
    for (const [chosen, box] of boxes) {
      const lines = chosen.map(([name, at], number) => ({ label: name, stroke: number ? "#c4742f" : accent, values: found.columns[at] }));
      drawLoad(box, chosen.map(([name]) => name).join(", "), 180, found.times, lines);
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
