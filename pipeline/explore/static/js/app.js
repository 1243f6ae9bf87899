// The page: loads the output, holds the state, and connects its parts.

import { count, html, plural, render, useEffect, useMemo, useRef, useState } from "./html.js";
import { Disks } from "./disk.js";
import { FIELDS, beside, rowsOf, select } from "./filters.js";
import { Grid, PAGE, Pages } from "./grid.js";
import { Help, onKey } from "./keys.js";
import { getJson, loadOutput } from "./load.js";
import { MARKS, Marks } from "./marks.js";
import { Panel, TextField, panelOptions } from "./panel.js";
import { RowView } from "./row.js";
import { SCORES, setScores } from "./scores.js";
import { Sliders } from "./slider.js";
import { pageOf, parseRow, readState, rowName, shareLink, writeState } from "./state.js";
import { nextTheme, setTheme } from "./theme.js";

function Loading() {
  const [share, setShare] = useState(0),
    [data, setData] = useState(null),
    [error, setError] = useState("");
  useEffect(() => {
    const load = async () => {
      const site = await getJson("data/site.json"),
        marks = new Marks(site);
      setScores(site.scores);
      const output = await loadOutput(site.output, site.chunk, setShare);
      await marks.load();
      document.title = `Explorer: ${output.name}`;
      setData({ site, output, marks });
    };
    load().catch((reason) => setError(String(reason.message)));
  }, []);
  if (error) return html`<p class="loading warning">${error}</p>`;
  return data ? html`<${App} ...${data} />` : html`<p class="loading">Loading <progress value=${share} /></p>`;
}

function App({ site, output, marks }) {
  const [state, setState] = useState(readState),
    [cursor, setCursor] = useState(0),
    [isHelp, showHelp] = useState(false),
    [isDisk, showDisk] = useState(site.disks.length > 0);
  const [theme, chooseTheme] = useState(() => setTheme()),
    [isPreview, showPreview] = useState([...SCORES.keys()].some((name) => state[name] !== ""));
  const rowKeys = useRef({});
  const change = (...values) =>
    setState((before) => {
      const next = { ...before, page: "" };
      for (let i = 0; i < values.length; i += 2) next[values[i]] = String(values[i + 1]);
      writeState(before, next);
      return next;
    });
  useEffect(() => {
    const read = () => setState(readState());
    addEventListener("hashchange", read);
    addEventListener("popstate", read);
    return () => {
      removeEventListener("hashchange", read);
      removeEventListener("popstate", read);
    };
  }, []);
  const options = useMemo(() => panelOptions(output), [output]);
  const filters = FIELDS.map((name) => state[name]).join("\n");
  const mask = useMemo(() => select(output, state), [output, filters]),
    found = useMemo(() => rowsOf(mask), [mask]);
  useEffect(() => setCursor(0), [filters]);
  const lastPage = Math.max(Math.ceil(found.length / PAGE) - 1, 0),
    page = pageOf(state.page, lastPage);
  const opened = useMemo(() => (state.row ? parseRow(output, state.row) : -1), [output, state.row]),
    isOpen = opened >= 0;

  const goTo = (page) => {
    change("page", page || "", "row", "");
    setCursor(page * PAGE);
    scrollTo(0, 0);
  };
  const open = (at) => {
    setCursor(at);
    change("page", Math.floor(at / PAGE) || "", "row", rowName(output, found[at]));
  };
  const close = () => change("page", state.page, "row", "");
  const move = (step) => {
    const at = Math.min(Math.max(isOpen ? beside(found, opened, step) : cursor + step, 0), found.length - 1);
    if (at < 0) return;
    if (isOpen) {
      open(at);
      return;
    }
    setCursor(at);
    if (Math.floor(at / PAGE) !== page) change("page", Math.floor(at / PAGE) || "");
    requestAnimationFrame(() => document.querySelector(`[data-at="${at}"]`)?.scrollIntoView({ block: "nearest" }));
  };
  const actions = {
    search: () => document.querySelector("input[name=q]").focus(),
    move,
    turn: (step) => !isOpen && goTo(Math.min(Math.max(page + step, 0), lastPage)),
    open: () => !isOpen && found.length > 0 && open(cursor),
    close: () => (isHelp ? showHelp(false) : isOpen && close()),
    help: () => showHelp(!isHelp),
    box: (step) => isOpen && rowKeys.current.box?.(step),
    mark: (value) => isOpen && rowKeys.current.mark?.(value),
    isOpen: () => isOpen,
  };
  const latest = useRef(actions);
  latest.current = actions;
  useEffect(() => {
    const listen = (event) => onKey(event, latest.current);
    addEventListener("keydown", listen);
    return () => removeEventListener("keydown", listen);
  }, []);

  const marked = marks.counts(),
    nMarked = marked.right + marked.wrong + marked.unsure;
  const isCovered = isOpen || isHelp;
  const openRow = (row) => change("row", rowName(output, row));
  return html`
    <header class="top" inert=${isCovered}>
      <h1>${output.name}</h1>
      <${TextField} name="q" label="Search captions" value=${state.q} placeholder='red "fire truck"'
        onChange=${change} />
      <div class="tools"><button name="theme"
        onClick=${() => chooseTheme(setTheme(nextTheme(theme)))}>Theme: ${theme}</button>
        <button name="help" onClick=${() => showHelp(true)} aria-label="Help">?</button></div>
    </header>
    <div class="layout" inert=${isCovered}>
      <details class="aside" open=${innerWidth > 900}><summary>Filters</summary>
        <${Panel} options=${options} state=${state} onChange=${change}
          onReset=${() => change(...FIELDS.flatMap((name) => [name, ""]))} /></details>
      <main>
        <details class="thresholds" open=${isPreview} onToggle=${(event) => showPreview(event.target.open)}>
          <summary>Other thresholds</summary>
          ${
            isPreview &&
            html`<${Sliders} output=${output} state=${state} mask=${mask} isFiltered=${found.length < output.n}
              onChange=${change} onOpen=${openRow} />`
          }</details>
        ${
          site.disks.length > 0 &&
          html`<details open=${isDisk} onToggle=${(event) => showDisk(event.target.open)}>
          <summary>Poincaré disk</summary>
          ${
            isDisk &&
            html`<${Disks} disks=${site.disks} output=${output} mask=${mask} onOpen=${openRow} />`
          }</details>`
        }
        <div class="bar"><p id="count" role="status" data-n=${found.length}><b>${count(found.length)}
          </b> of ${plural(output.n, "row")}</p>
          ${nMarked > 0 && html`<p id="marked">
            ${MARKS.map((mark) => `${marked[mark]} ${mark}`).join(", ")}
            ${site.marks !== null && ` in ${site.marks}`}</p>`}
          ${site.marks === null && nMarked > 0 && html`<button name="download"
            onClick=${() => marks.download()}>Download marks</button>`}
          ${output.nImages !== undefined && html`<p class="soft">This page includes a random sample of
              ${" "}${count(output.nShown)} of ${plural(output.nImages, "picture")}.</p>`}
          <${Pages} n=${found.length} page=${page} onPage=${goTo} /></div>
        <${Grid} output=${output} found=${found} page=${page} cursor=${cursor} filters=${state}
          onOpen=${open} />
        ${found.length > PAGE && html`<${Pages} n=${found.length} page=${page} onPage=${goTo} />`}
      </main>
    </div>
    ${state.row && !isOpen && html`<p class="toast warning">The row ${state.row} is not in this output.</p>`}
    ${
      isOpen &&
      html`<${RowView} output=${output} row=${opened} marks=${marks}
      link=${shareLink(site, { row: state.row })} place=${state.row}
      keys=${rowKeys} onClose=${close} onStep=${move} />`
    }
    ${isHelp && html`<${Help} onClose=${() => showHelp(false)} />`}`;
}

const root = document.getElementById("app");
root.replaceChildren();
render(html`<${Loading} />`, root);
