// The page: loads the outputs, holds the state, and connects its parts.

import { count, html, plural, render, useEffect, useMemo, useRef, useState } from "./html.js";
import { Disks } from "./disk.js";
import { FIELDS, beside, selectPairs } from "./filters.js";
import { Grid, PAGE, Pages } from "./grid.js";
import { Help, onKey } from "./keys.js";
import { getJson, loadOutput, loadPairs } from "./load.js";
import { MARKS, Marks } from "./marks.js";
import { Panel, TextField, panelOptions } from "./panel.js";
import { RowView } from "./row.js";
import { Sliders } from "./slider.js";
import { NAMES } from "./thresholds.js";
import { EMPTY, pageOf, parseRow, readState, rowName, shareLink, writeState } from "./state.js";
import { nextTheme, setTheme } from "./theme.js";

function Loading() {
  const [share, setShare] = useState(0),
    [data, setData] = useState(null),
    [error, setError] = useState("");
  useEffect(() => {
    const load = async () => {
      const site = await getJson("data/site.json"),
        shares = site.outputs.map(() => 0),
        marks = new Marks(site);
      const outputs = await Promise.all(
        site.outputs.map((entry, number) =>
          loadOutput(entry, site.chunk, (done) => {
            shares[number] = done;
            setShare(shares.reduce((a, b) => a + b) / shares.length);
          }),
        ),
      );
      await marks.load();
      document.title = `Explorer: ${outputs.map((output) => output.name).join(" | ")}`;
      setData({ site, outputs, marks, pairs: await loadPairs(outputs) });
    };
    load().catch((reason) => setError(String(reason.message)));
  }, []);
  if (error) return html`<p class="loading warning">${error}</p>`;
  return data ? html`<${App} ...${data} />` : html`<p class="loading">Loading <progress value=${share} /></p>`;
}

function App({ site, outputs, marks, pairs }) {
  const [state, setState] = useState(readState),
    [cursor, setCursor] = useState(0),
    [isHelp, showHelp] = useState(false),
    [isDisk, showDisk] = useState(site.disks.length > 0);
  const [theme, chooseTheme] = useState(() => setTheme()),
    [isPreview, showPreview] = useState(NAMES.some((name) => state[name] !== ""));
  const [output, other] = outputs,
    rowKeys = useRef({});
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
  const options = useMemo(() => panelOptions(outputs), [outputs]);
  const filters = FIELDS.map((name) => state[name]).join("\n");
  const { found, masks } = useMemo(() => selectPairs(outputs, pairs, state), [outputs, pairs, filters]);
  useEffect(() => setCursor(0), [filters]);
  const lastPage = Math.max(Math.ceil(found.length / PAGE) - 1, 0),
    page = pageOf(state.page, lastPage);
  const opened = useMemo(() => state.row && parseRow(outputs, state.row), [outputs, state.row]);
  const pairOf = ({ number, row }) => (number ? pairs.right : pairs.left).indexOf(row);
  const openPair = opened ? pairOf(opened) : -1;

  const nameOf = (pair) =>
    pairs.left[pair] >= 0 ? rowName("a", output, pairs.left[pair]) : rowName("b", other, pairs.right[pair]);
  const goTo = (page) => {
    change("page", page || "", "row", "");
    setCursor(page * PAGE);
    scrollTo(0, 0);
  };
  const open = (at) => {
    setCursor(at);
    change("page", Math.floor(at / PAGE) || "", "row", nameOf(found[at]));
  };
  const close = () => change("page", state.page, "row", "");
  const move = (step) => {
    const at = Math.min(Math.max(opened ? beside(found, openPair, step) : cursor + step, 0), found.length - 1);
    if (at < 0) return;
    if (opened) {
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
    turn: (step) => !opened && goTo(Math.min(Math.max(page + step, 0), lastPage)),
    open: () => !opened && found.length > 0 && open(cursor),
    close: () => (isHelp ? showHelp(false) : opened && close()),
    help: () => showHelp(!isHelp),
    box: (step) => opened && rowKeys.current.box?.(step),
    mark: (value) => opened && rowKeys.current.mark?.(value),
    isOpen: () => Boolean(opened),
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
  const isCovered = openPair >= 0 || isHelp;
  const isFiltered = found.length < pairs.left.length;
  return html`
    <header class="top" inert=${isCovered}>
      <h1>${outputs.map((item, i) => html`<span key=${i}>${other && html`<b class="letter">${"AB"[i]}
        </b>`}${item.name}</span>`)}</h1>
      <${TextField} name="q" label="Search captions" value=${state.q} placeholder='red "fire truck"'
        onChange=${change} />
      <div class="tools"><button name="theme"
        onClick=${() => chooseTheme(setTheme(nextTheme(theme)))}>Theme: ${theme}</button>
        <button name="help" onClick=${() => showHelp(true)} aria-label="Help">?</button></div>
    </header>
    <div class="layout" inert=${isCovered}>
      <details class="aside" open=${innerWidth > 900}><summary>Filters</summary>
        <${Panel} options=${options} state=${state} onChange=${change}
          onReset=${() => change(...FIELDS.flatMap((name) => [name, EMPTY[name]]))} /></details>
      <main>
        <details class="thresholds" open=${isPreview} onToggle=${(event) => showPreview(event.target.open)}>
          <summary>Other thresholds</summary>
          ${
            isPreview &&
            html`<${Sliders} output=${output} state=${state} mask=${masks[0]} isFiltered=${isFiltered}
              onChange=${change}
            onOpen=${(row) => change("row", rowName("a", output, row))} />`
          }</details>
        ${
          site.disks.length > 0 &&
          html`<details open=${isDisk} onToggle=${(event) => showDisk(event.target.open)}>
          <summary>Poincaré disk</summary>
          ${
            isDisk &&
            html`<${Disks} disks=${site.disks} output=${output} mask=${masks[0]}
              onOpen=${(row) => change("row", rowName("a", output, row))} />`
          }</details>`
        }
        <div class="bar"><p id="count" role="status" data-n=${found.length}><b>${count(found.length)}
          </b> of ${plural(pairs.left.length, "row")}</p>
          ${nMarked > 0 && html`<p id="marked">
            ${MARKS.map((mark) => `${marked[mark]} ${mark}`).join(", ")}
            ${site.marks !== null && ` in ${site.marks}`}</p>`}
          ${site.marks === null && nMarked > 0 && html`<button name="download"
            onClick=${() => marks.download()}>Download marks</button>`}
          ${outputs.map((item) => item.nImages !== undefined && html`<p key=${item.folder}
            class="soft">This page includes a random sample of ${count(item.nShown)}
              ${" of "}${plural(item.nImages, "picture")}.</p>`)}
          <${Pages} n=${found.length} page=${page} onPage=${goTo} /></div>
        <${Grid} outputs=${outputs} pairs=${pairs} found=${found} page=${page} cursor=${cursor} filters=${state}
          onOpen=${open} />
        ${found.length > PAGE && html`<${Pages} n=${found.length} page=${page} onPage=${goTo} />`}
      </main>
    </div>
    ${state.row && !opened && html`<p class="toast warning">The row ${state.row} is not in this output.</p>`}
    ${
      openPair >= 0 &&
      html`<${RowView} outputs=${outputs} left=${pairs.left[openPair]} right=${other ? pairs.right[openPair] : -1}
        marks=${marks}
      link=${shareLink(site, { ...EMPTY, row: state.row })} place=${state.row}
      keys=${rowKeys} onClose=${close} onStep=${move} />`
    }
    ${isHelp && html`<${Help} onClose=${() => showHelp(false)} />`}`;
}

const root = document.getElementById("app");
root.replaceChildren();
render(html`<${Loading} />`, root);
