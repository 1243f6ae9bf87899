// Light and dark: as the system says, unless the reader chose one.

const PLACE = "hypergrit-theme",
  THEMES = ["auto", "light", "dark"];

/** Apply a theme, or the one that was chosen last; return its name. */
export function setTheme(theme = null) {
  let chosen = theme;
  try {
    if (theme) localStorage.setItem(PLACE, theme);
    else chosen = localStorage.getItem(PLACE);
  } catch {
    /* private windows have no storage */
  }
  if (!THEMES.includes(chosen)) chosen = "auto";
  document.documentElement.dataset.theme = chosen;
  return chosen;
}
export const nextTheme = (theme) => THEMES[(THEMES.indexOf(theme) + 1) % THEMES.length];
