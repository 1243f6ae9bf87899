// The parts of the vendored library that the page uses.
export { html, render, useEffect, useMemo, useRef, useState } from "../vendor/htm/standalone.module.js";

/** A number with separators between thousands. */
export const count = (n) => n.toLocaleString("en-US");

/** "1 row", "2 rows". */
export const plural = (n, word) => `${count(n)} ${word}${n === 1 ? "" : /x$/.test(word) ? "es" : "s"}`;

/** The CLIPScore of a cosine, the unit of all CLIP scores on the page. */
export const clipScore = (cosine) => 2.5 * Math.max(cosine, 0);
/** A score with two decimals; a dash for a missing one. */
export const decimals = (value) => (value === null || Number.isNaN(value) ? "–" : value.toFixed(2));
