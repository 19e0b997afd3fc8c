"use strict";
(() => {
  const steps = (data, from, values) => values.map((_, i) => (from + i) * data.dt);

  // --- the four figures: which numbers of a curve (the truth starts at sample 0, a forecast where the context ends) ---

  const FIGURES = {
    rollout: (data, at) => ({
      x: "time",
      y: data.labels[at.coordinate],
      points: (curve, start) => [steps(data, start, curve.q[at.trajectory][0]), curve.q[at.trajectory][at.coordinate]],
      context: true,
    }),
    phase: (data, at) => ({
      x: data.labels[at.coordinate],
      y: `velocity of ${data.names[at.coordinate]}${data.speeds[at.coordinate]}`,
      points: (curve, start) => [curve.q, curve.v].map((c) => c[at.trajectory][at.coordinate].slice(data.context - 1 - start)),
      bounded: true,
    }),
    damping: (data, at) => ({
      x: data.labels[at.along],
      y: `damping of ${data.names[at.coordinate]}`,
      points: (curve) => curve.damping && [data.along[at.along], curve.damping[at.along][at.coordinate]],
      fromZero: true,
    }),
    energy: (data, at) => ({
      x: "time",
      y: "energy H",
      points: (curve, start) => {
        const energy = curve.energy && curve.energy[at.trajectory].slice(data.context - 1 - start);
        return energy && [steps(data, data.context - 1, energy), energy];
      },
    }),
  };

  function lines(data, figure, visible) {
    const truth = { label: "truth", colour: "--truth", dash: "solid", curves: data.truth, start: 0, width: 4 };
    const models = data.models.map((model) => ({ ...model, curves: model, start: data.context - 1, width: 2 }));
    return [truth, ...models]
      .filter((line, i) => figure.points(line.curves, line.start) && (i === 0 || visible[i - 1]))
      .map((line) => {
        const [x, y] = figure.points(line.curves, line.start);
        return Page.line({ ...line, x, y });
      });
  }

  function framed(data, figure, traces) {
    const [truth, others] = [traces.filter((t) => t.name === "truth"), traces.filter((t) => t.name !== "truth")];
    const fitted = (axis) => Page.frame(truth.flatMap((t) => t[axis]), others.map((t) => t[axis]));
    const upTo = Math.max(0.1, ...Page.finite(traces.flatMap((t) => t.y)));
    return {
      x: { title: figure.x, range: figure.bounded ? fitted("x") : null },
      y: { title: figure.y, range: figure.fromZero ? [-0.04 * upTo, 1.08 * upTo] : fitted("y") },
      shaded: figure.context ? [[0, (data.context - 1) * data.dt]] : [],
      closest: figure.bounded,
    };
  }

  Page.run((section, data) => {
    const chosen = (name) => Page.chosen(section, name);
    const at = { trajectory: chosen("trajectory"), coordinate: chosen("coordinate"), along: chosen("along") };
    const visible = [...section.querySelectorAll("input[name=model]")].map((box) => box.checked);
    for (const place of section.querySelectorAll("[data-figure]")) {
      const figure = FIGURES[place.dataset.figure](data, at);
      const traces = lines(data, figure, visible);
      Page.show(place, traces, framed(data, figure, traces));
    }
  });

  document.querySelectorAll("button.all").forEach((button) =>
    button.addEventListener("click", () => {
      const boxes = [...button.closest(".controls").querySelectorAll("input[name=model]")];
      const on = !boxes.every((box) => box.checked);
      boxes.forEach((box) => (box.checked = on));
      button.dispatchEvent(new Event("change", { bubbles: true }));
    }),
  );
})();
