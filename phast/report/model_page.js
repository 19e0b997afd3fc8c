"use strict";
(() => {
  // Every figure is a function of a section's numbers and of what its controls choose.
  const ours = (x, y) => Page.line({ x, y, label: "model", colour: "--phast-0" });

  const within = (x, y, deviation) => {
    const [upper, lower] = [1, -1].map((sign) => y.map((value, i) => value + sign * 2 * deviation[i]));
    return {
      x: [...x, ...[...x].reverse()], y: [...upper, ...lower.reverse()], fill: "toself", fillcolor: Page.css("--band"),
      type: "scatter", mode: "lines", line: { width: 0 }, hoverinfo: "skip",
    };
  };

  const field = (name, also = []) => (data, at) => {
    const along = data.along[at.coordinate];
    const { title, y, deviation } = along[name];
    return {
      traces: [within(along.at, y, deviation), ours(along.at, y)],
      x: along.label,
      y: title,
      range: Page.frame([...y, ...also], y.map((value, i) => [value - 2 * deviation[i], value + 2 * deviation[i]])),
      shaded: [along.seen],
      note: along.moving,
    };
  };

  const BALANCE = [
    ["supplied", "--other-6", "dash"],
    ["dissipated", "--other-0", "dash"],
    ["stored", "--phast-0", "solid"],
    ["unexplained", "--truth", "dot"],
  ];

  const FIGURES = {
    force: field("force"),
    damping: field("damping", [0]),
    forecast: (data, at) => {
      const start = data.starts[at.start];
      const [measured, y, deviation] = [start.measured, start.forecast, start.deviation].map((c) => c[at.coordinate]);
      const after = start.t.slice(data.window);
      return {
        traces: [
          within(after, y, deviation),
          Page.line({ x: start.t, y: measured, label: "measured", colour: "--truth", width: 4 }),
          ours(after, y),
        ],
        x: "time ahead [s]",
        y: data.labels[at.coordinate],
        range: Page.frame(measured, [y]),
        shaded: [[start.t[0], start.t[data.window - 1]]],
      };
    },
    energy: (data, at) => {
      const piece = data.pieces[at.piece];
      return {
        traces: [Page.line({ x: piece.t, y: piece.energy, label: "H", colour: "--phast-0" })],
        x: "time [s]",
        y: `energy H${data.unit}`,
      };
    },
    balance: (data, at) => {
      const piece = data.pieces[at.piece];
      const present = BALANCE.filter(([name]) => piece[name]);
      return {
        traces: present.map(([name, colour, dash]) => Page.line({ x: piece.t, y: piece[name], label: name, colour, dash })),
        x: "time [s]",
        y: `energy since the start${data.unit}`,
      };
    },
  };

  Page.run((section, data) => {
    const at = Object.fromEntries(["coordinate", "start", "piece"].map((name) => [name, Page.chosen(section, name)]));
    for (const place of section.querySelectorAll("[data-figure]")) {
      const figure = FIGURES[place.dataset.figure](data, at);
      Page.show(place, figure.traces, {
        x: { title: figure.x }, y: { title: figure.y, range: figure.range }, shaded: figure.shaded,
      });
      const note = place.closest("figure").querySelector("[data-note]");
      if (note) note.textContent = figure.note;
    }
  });
})();
