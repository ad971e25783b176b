/** Addresses behind the `#`: `#/sessions/{id}/turns/{turn_id}`. The first word names the page. */
import { signal } from "@preact/signals";

export interface Route {
  page: string;
  /** What follows the page's name, decoded. */
  path: string[];
  query: URLSearchParams;
}

const decode = (text: string): string => {
  try {
    return decodeURIComponent(text);
  } catch {
    return text;
  }
};

function parse(hash: string): Route {
  const [path = "", query = ""] = hash.replace(/^#\/?/, "").split("?");
  const [page = "", ...rest] = path.split("/").filter(Boolean).map(decode);
  return { page, path: rest, query: new URLSearchParams(query) };
}

export const route = signal<Route>(parse(location.hash));
addEventListener("hashchange", () => (route.value = parse(location.hash)));

/** `href("sessions", id)` is `#/sessions/<id>`. */
export const href = (...path: string[]): string => "#/" + path.map(encodeURIComponent).join("/");

export function go(to: string, { replace = false } = {}): void {
  if (replace) {
    history.replaceState(null, "", to);
    route.value = parse(location.hash);
  } else location.hash = to;
}
