// One chart of load over time: on a guest's page, and in the view inside an MCP client.
window.drawLoad = (function () {
  "use strict";
  // Times as everywhere else: UTC, 24 hours, year before month before day.
  const stamp = (seconds) => new Date(seconds * 1000).toISOString();
  function tick(seconds, step) {
    const text = stamp(seconds);
    if (step >= 28 * 86400) { return text.slice(0, 7); }
    return step >= 86400 || text.slice(11, 16) === "00:00" ? text.slice(5, 10) : text.slice(11, 16);
  }

  // The box has to be in the page with all of its neighbors, so that it has its width.
  // The axis ends at `top`, or at the largest value of what has no limit.
  return function (box, title, height, times, lines, top) {
    const ink = getComputedStyle(document.body).color;
    const axis = { stroke: ink, grid: { stroke: ink, width: 0.15 } };
    const dates = { ...axis, values: (plot, all, at, space, step) => all.map((one) => tick(one, step)) };
    const time = { value: (plot, one) => one == null ? "--" : stamp(one).slice(0, 16).replace("T", " ") };
    new uPlot({
      title: title, width: box.clientWidth, height: height,
      scales: { y: { range: (plot, low, high) => [0, Math.max(high, top || 1)] } },
      axes: [dates, axis],
      cursor: { sync: { key: "load" } },
      tzDate: (seconds) => uPlot.tzDate(new Date(seconds * 1000), "Etc/UTC"),
      series: [time, ...lines.map((line) => ({ label: line.label, stroke: line.stroke, width: 1.5 }))],
    }, [times, ...lines.map((line) => line.values)], box);
  };
})();
