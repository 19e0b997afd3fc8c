"use strict";
(() => {
  // A fan: what nine in ten trials lie between, and their median.
  const fan = (x, [low, middle, high], label) => [
    {
      x: [...x, ...[...x].reverse()], y: [...high, ...[...low].reverse()], fill: "toself", fillcolor: Page.css("--band"),
      type: "scatter", mode: "lines", line: { width: 0 }, hoverinfo: "skip",
    },
    Page.line({ x, y: middle, label, colour: "--phast-0" }),
  ];

  const level = (x, y, label, dash) =>
    Page.line({ x: [x[0], x.at(-1)], y: [y, y], label, colour: "--truth", dash, width: 1 });

  const FIGURES = {
    position: (data, at) => {
      const lines = data.positions[at.start][at.coordinate];
      const [target, band] = [data.target[at.coordinate], data.band[at.coordinate]];
      return {
        traces: [
          ...fan(data.t, lines, "median"),
          level(data.t, target, "target", "dash"),
          ...band.map((edge) => level(data.t, edge, "tolerance", "dot")),
        ],
        title: data.labels[at.coordinate],
        range: Page.frame([...lines[1], ...band], lines),
      };
    },
    input: (data, at) => {
      const lines = data.applied[at.start][at.input];
      const most = data.limits[at.input];
      const limits = most === null ? [] : [-most, most];
      return {
        traces: [...fan(data.t, lines, "median"), ...limits.map((limit) => level(data.t, limit, "limit", "dot"))],
        title: data.inputs[at.input],
        range: Page.frame([...lines[1], ...limits], lines),
      };
    },
  };

  Page.run((section, data) => {
    const at = Object.fromEntries(["start", "coordinate", "input"].map((name) => [name, Page.chosen(section, name)]));
    for (const place of section.querySelectorAll("[data-figure]")) {
      const { traces, title, range } = FIGURES[place.dataset.figure](data, at);
      Page.show(place, traces, { x: { title: "time [s]" }, y: { title, range } });
    }
  });
})();
