"use strict";
// What every page does. A page's own script says how a section is drawn: Page.run(draw).
const Page = (() => {
  const SECTIONS = JSON.parse(document.getElementById("data").textContent);
  const CONFIG = {
    responsive: true,
    displayModeBar: matchMedia("(hover: hover)").matches ? "hover" : false,
    modeBarButtons: [["toImage", "zoom2d", "pan2d", "resetScale2d"]],
    displaylogo: false,
  };

  const css = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();
  const plain = (text) => text.replaceAll("&", "&amp;").replaceAll("<", "&lt;"); // Plotly reads tags in its labels
  const finite = (values) => values.filter((value) => value !== null);

  // --- a figure: lines, a frame around them, axes with titles --------------------------------------------------------

  const line = ({ x, y, label, colour, dash = "solid", width = 2 }) => ({
    x, y, name: plain(label), type: "scatter", mode: "lines", hovertemplate: "%{y:.4g}",
    line: { color: css(colour), dash, width },
  });

  // What runs away must not flatten the rest: the frame is that of `own`, and at most three times as large.
  function frame(own, others) {
    const all = finite([own, ...others].flat());
    const inner = own.length ? finite(own) : all;
    const [low, high] = [Math.min(...inner), Math.max(...inner)];
    const span = Math.max(high - low, 0.5 * Math.max(Math.abs(low), Math.abs(high)), 1e-9);
    const bottom = Math.max(Math.min(...all), low - span);
    const top = Math.min(Math.max(...all), high + span);
    const margin = 0.06 * Math.max(top - bottom, 0.02 * span);
    return [bottom - margin, top + margin];
  }

  const shade = ([x0, x1]) => ({
    type: "rect", yref: "paper", x0, x1, y0: 0, y1: 1, layer: "below", line: { width: 0 }, fillcolor: css("--context"),
  });

  function show(place, traces, { x, y, shaded = [], closest = false }) {
    const axis = ({ title, range }) => ({
      title: { text: plain(title), standoff: 6 }, gridcolor: css("--rule"), zerolinecolor: css("--rule"), automargin: true,
      ...(range && { range }),
    });
    const layout = {
      xaxis: axis(x),
      yaxis: axis(y),
      shapes: shaded.map(shade),
      margin: { l: 8, r: 8, t: 8, b: 8 },
      font: { color: css("--ink"), family: css("--font"), size: 13 },
      paper_bgcolor: "rgba(0,0,0,0)",
      plot_bgcolor: "rgba(0,0,0,0)",
      hovermode: closest ? "closest" : "x unified",
      modebar: { bgcolor: "rgba(0,0,0,0)", color: css("--faint"), activecolor: css("--accent") },
      hoverlabel: { bgcolor: css("--paper") },
      dragmode: matchMedia("(pointer: coarse)").matches ? false : "zoom", // a finger on a figure scrolls the page
      showlegend: false,
    };
    Plotly.react(place, traces, layout, CONFIG);
  }

  // --- drawing: once in view, and again when a control, the colour scheme or a printer asks for it -------------------

  const chosen = (section, name) => Number(section.querySelector(`select[name=${name}]`)?.value ?? 0);

  function whenSeen(place, act) {
    if (!("IntersectionObserver" in window)) return act();
    const observer = new IntersectionObserver(
      (entries) => {
        if (!entries.some((entry) => entry.isIntersecting)) return;
        observer.disconnect();
        act();
      },
      { rootMargin: "300px" },
    );
    observer.observe(place);
  }

  function run(drawInto) {
    const drawn = new Set();
    const draw = (data) => {
      drawInto(document.getElementById(data.id), data);
      drawn.add(data);
    };
    const redraw = () => drawn.forEach(draw);
    for (const data of SECTIONS) {
      const section = document.getElementById(data.id);
      section.querySelector(".controls")?.addEventListener("change", () => draw(data));
      whenSeen(section.querySelector(".figures"), () => draw(data));
    }
    matchMedia("(prefers-color-scheme: dark)").addEventListener("change", redraw);
    addEventListener("beforeprint", () => {
      document.documentElement.classList.add("printed");
      SECTIONS.forEach(draw);
    });
    addEventListener("afterprint", () => {
      document.documentElement.classList.remove("printed");
      redraw();
    });
  }

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

  return { css, chosen, finite, frame, line, run, show };
})();
