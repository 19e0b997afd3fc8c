"use strict";
(() => {
  const SECTIONS = JSON.parse(document.getElementById("data").textContent);
  const CONFIG = {
    responsive: true,
    displayModeBar: matchMedia("(hover: hover)").matches ? "hover" : false,
    modeBarButtons: [["toImage", "zoom2d", "pan2d", "resetScale2d"]],
    displaylogo: false,
  };
  const drawn = new Set();

  const css = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();
  const plain = (text) => text.replaceAll("&", "&amp;").replaceAll("<", "&lt;"); // Plotly reads tags in its labels
  const steps = (data, from, values) => values.map((_, i) => (from + i) * data.dt);

  // --- the four figures: which numbers of a curve (the truth starts at sample 0, a forecast where the context ends) ---

  const FIGURES = {
    rollout: (data, at) => ({
      x: "time",
      y: data.names[at.coordinate],
      points: (curve, start) => [steps(data, start, curve.q[at.trajectory][0]), curve.q[at.trajectory][at.coordinate]],
      context: true,
    }),
    phase: (data, at) => ({
      x: data.names[at.coordinate],
      y: `velocity of ${data.names[at.coordinate]}`,
      points: (curve, start) => [curve.q, curve.v].map((c) => c[at.trajectory][at.coordinate].slice(data.context - 1 - start)),
      bounded: true,
    }),
    damping: (data, at) => ({
      x: data.names[at.along],
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

  // A forecast that runs away must not flatten the rest: the frame is the truth's, and at most three times as large.
  function frame(truth, others) {
    const finite = (values) => values.filter((value) => value !== null);
    const all = finite([truth, ...others].flat());
    const own = truth.length ? finite(truth) : all;
    const [low, high] = [Math.min(...own), Math.max(...own)];
    const span = Math.max(high - low, 0.5 * Math.max(Math.abs(low), Math.abs(high)), 1e-9);
    const bottom = Math.max(Math.min(...all), low - span);
    const top = Math.min(Math.max(...all), high + span);
    const margin = 0.06 * Math.max(top - bottom, 0.02 * span);
    return [bottom - margin, top + margin];
  }

  function lines(data, figure, visible) {
    const truth = { label: "truth", colour: "--truth", dash: "solid", curves: data.truth, start: 0, width: 4 };
    const models = data.models.map((model) => ({ ...model, curves: model, start: data.context - 1, width: 2 }));
    return [truth, ...models]
      .filter((line, i) => figure.points(line.curves, line.start) && (i === 0 || visible[i - 1]))
      .map((line) => {
        const [x, y] = figure.points(line.curves, line.start);
        const style = { color: css(line.colour), dash: line.dash, width: line.width };
        return { x, y, name: plain(line.label), type: "scatter", mode: "lines", line: style, hovertemplate: "%{y:.4g}" };
      });
  }

  function layout(data, figure, traces) {
    const [truth, others] = [traces.filter((t) => t.name === "truth"), traces.filter((t) => t.name !== "truth")];
    const fitted = (axis) => frame(truth.flatMap((t) => t[axis]), others.map((t) => t[axis]));
    const axis = (title) => ({
      title: { text: plain(title), standoff: 6 }, gridcolor: css("--rule"), zerolinecolor: css("--rule"), automargin: true,
    });
    const upTo = Math.max(0.1, ...traces.flatMap((t) => t.y).filter((y) => y !== null));
    return {
      xaxis: figure.bounded ? { ...axis(figure.x), range: fitted("x") } : axis(figure.x),
      yaxis: { ...axis(figure.y), range: figure.fromZero ? [-0.04 * upTo, 1.08 * upTo] : fitted("y") },
      shapes: figure.context
        ? [{ type: "rect", yref: "paper", x0: 0, x1: (data.context - 1) * data.dt, y0: 0, y1: 1, layer: "below",
             line: { width: 0 }, fillcolor: css("--context") }]
        : [],
      margin: { l: 8, r: 8, t: 8, b: 8 },
      font: { color: css("--ink"), family: css("--font"), size: 13 },
      paper_bgcolor: "rgba(0,0,0,0)",
      plot_bgcolor: "rgba(0,0,0,0)",
      hovermode: figure.bounded ? "closest" : "x unified",
      modebar: { bgcolor: "rgba(0,0,0,0)", color: css("--faint"), activecolor: css("--accent") },
      hoverlabel: { bgcolor: css("--paper") },
      dragmode: matchMedia("(pointer: coarse)").matches ? false : "zoom", // a finger on a figure scrolls the page
      showlegend: false,
    };
  }

  function draw(section, data) {
    const chosen = (name) => Number(section.querySelector(`select[name=${name}]`)?.value ?? 0);
    const at = { trajectory: chosen("trajectory"), coordinate: chosen("coordinate"), along: chosen("along") };
    const visible = [...section.querySelectorAll("input[name=model]")].map((box) => box.checked);
    for (const place of section.querySelectorAll("[data-figure]")) {
      const figure = FIGURES[place.dataset.figure](data, at);
      const traces = lines(data, figure, visible);
      Plotly.react(place, traces, layout(data, figure, traces), CONFIG);
    }
    drawn.add(data);
  }

  // --- drawing: once in view, and again when a control, the colour scheme or a printer asks for it -------------------

  const sectionOf = (data) => document.getElementById(data.id);
  const redraw = () => drawn.forEach((data) => draw(sectionOf(data), data));

  function whenSeen(data, section) {
    if (!("IntersectionObserver" in window)) return draw(section, data);
    const observer = new IntersectionObserver(
      (entries) => {
        if (!entries.some((entry) => entry.isIntersecting)) return;
        observer.disconnect();
        draw(section, data);
      },
      { rootMargin: "300px" },
    );
    observer.observe(section.querySelector(".figures"));
  }

  for (const data of SECTIONS) {
    const section = sectionOf(data);
    section.querySelector(".controls").addEventListener("change", () => draw(section, data));
    section.querySelector("button.all").addEventListener("click", () => {
      const boxes = [...section.querySelectorAll("input[name=model]")];
      const on = !boxes.every((box) => box.checked);
      boxes.forEach((box) => (box.checked = on));
      draw(section, data);
    });
    whenSeen(data, section);
  }
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", redraw);
  addEventListener("beforeprint", () => {
    document.documentElement.classList.add("printed");
    SECTIONS.forEach((data) => draw(sectionOf(data), data));
  });
  addEventListener("afterprint", () => {
    document.documentElement.classList.remove("printed");
    redraw();
  });

  // --- tables: a click on a heading sorts by it, another the other way round; empty cells stay last -----------------

  function sortBy(heading) {
    const [table, column] = [heading.closest("table"), heading.cellIndex];
    const rising = heading.getAttribute("aria-sort") !== "ascending";
    const value = (row) => row.cells[column].dataset.value;
    const compare = (a, b) => (isNaN(a) || isNaN(b) ? a.localeCompare(b) : a - b);
    const rows = [...table.tBodies[0].rows].sort((a, b) => {
      if (value(a) === "" || value(b) === "") return (value(a) === "") - (value(b) === "");
      return (rising ? 1 : -1) * compare(value(a), value(b));
    });
    table.querySelectorAll("th[aria-sort]").forEach((other) => other.removeAttribute("aria-sort"));
    heading.setAttribute("aria-sort", rising ? "ascending" : "descending");
    table.tBodies[0].append(...rows);
  }
  document.querySelectorAll("th button").forEach((b) => b.addEventListener("click", () => sortBy(b.closest("th"))));

  // --- the navigation follows the page -------------------------------------------------------------------------------

  const links = new Map([...document.querySelectorAll("nav a")].map((link) => [link.hash.slice(1), link]));
  function follow() {
    const passed = [...links.keys()].filter((id) => document.getElementById(id).getBoundingClientRect().top < 120);
    const current = links.get(passed.at(-1) ?? links.keys().next().value);
    if (!current || current.hasAttribute("aria-current")) return;
    links.forEach((link) => link.removeAttribute("aria-current"));
    current.setAttribute("aria-current", "true");
    const strip = current.closest("nav");
    strip.scrollLeft = current.offsetLeft - strip.clientWidth / 3;
  }
  addEventListener("scroll", follow, { passive: true });
  follow();
})();
