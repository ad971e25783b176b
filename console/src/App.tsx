/** The frame of all pages: navigation, what is wrong with the service, the question for a key, and Ctrl-K. */
import { useEffect, useErrorBoundary, useState } from "preact/hooks";
import { giveKey, key, keyWanted, otherVersion, reachable } from "./api";
import { Button } from "./components/Button";
import { Dialog } from "./components/Dialog";
import { Icon } from "./components/icons";
import { Menu } from "./components/Menu";
import { EmptyState, Failure } from "./components/parts";
import { Toasts } from "./components/Toast";
import { choose, language, type Language, LANGUAGES, number, t } from "./i18n";
import { problemOf } from "./load";
import { me } from "./me";
import { Frame } from "./Frame";
import { type Command, matches, Palette, paletteOpen, useCommands } from "./palette";
import { type Page, PAGES } from "./pages";
import { go, href, type Route, route } from "./router";
import { Shortcuts, shortcutsOpen } from "./Shortcuts";
import { type Theme, theme } from "./theme";

const shown = (): typeof PAGES => PAGES.filter(({ shownTo }) => shownTo === undefined || (me.value !== null && shownTo(me.value)));

export function App() {
  useShortcuts();
  useCommands((typed) => ownCommands().filter(({ label }) => matches(label, typed)));
  useCommands(async (typed) => (await Promise.all(shown().map(({ find }) => find?.(typed) ?? []))).flat());
  const at = route.value;
  const page = at.page === "" ? PAGES[0] : PAGES.find(({ name }) => name === at.page);
  return (
    <div class="app">
      <a class="skip" href="#main" onClick={(event) => { event.preventDefault(); document.getElementById("main")?.focus(); }}>{t("skip")}</a>
      <Banner />
      <Rail current={page} />
      {page ? <Shown key={page.name} page={page} at={at} /> : <Lost />}
      {keyWanted.value !== null && <KeyDialog />}
      <Palette />
      {shortcutsOpen.value && <Shortcuts />}
      <Toasts />
    </div>
  );
}

/** A page that fails says so; another address begins anew. */
function Shown({ page, at }: { page: Page; at: Route }) {
  const [error, again] = useErrorBoundary();
  useEffect(() => again(), [at]);
  if (error === undefined) return <page.view route={at} />;
  return <Frame title={t(page.label)}><div class="page"><Failure problem={problemOf(error)} onRetry={again} /></div></Frame>;
}

function Rail({ current }: { current: Page | undefined }) {
  return (
    <nav class="rail" aria-label={t("pages")}>
      <a class="brand" href={href()} aria-label="Segue"><Logo /></a>
      {shown().map(({ name, label, icon, view, count = () => 0 }) => (
        <a key={name} href={href(name)} class="place" aria-current={view === current?.view ? "page" : undefined} title={t(label)}>
          <Icon name={icon} size={20} /><span>{t(label)}{count() > 0 && <> ({number(count())})</>}</span>
        </a>
      ))}
      <div class="end">
        <Button kind="quiet" icon="search" label={`${t("palette")} (Ctrl-K)`} onClick={() => (paletteOpen.value = true)} />
        <Menu label={t("settings")} icon="settings" entries={[...themes(), ...languages(), keyboard(), ...keys()]} />
      </div>
    </nav>
  );
}

const Logo = () => (
  <svg width="30" height="30" viewBox="0 0 32 32" aria-hidden="true" class="logo">
    <rect width="32" height="32" rx="8" />
    <path d="M9 10.5h9.5a3.75 3.75 0 0 1 0 7.5H13a3.25 3.25 0 0 0 0 6.5h6m-1-3.700 4.200 3.700-4.200 3.700" />
  </svg>
);

const themes = () =>
  (["system", "light", "dark"] as Theme[]).map((name) => ({
    label: t(`theme_${name}` as const), icon: ({ system: "monitor", light: "sun", dark: "moon" } as const)[name],
    chosen: theme.value === name, act: () => void (theme.value = name),
  }));

const languages = () =>
  (Object.keys(LANGUAGES) as Language[]).map((tag) => ({
    label: LANGUAGES[tag], icon: "language" as const, chosen: language.value === tag, act: () => void choose(tag),
  }));

const keyboard = () => ({ label: t("shortcuts"), icon: "keyboard" as const, act: () => void (shortcutsOpen.value = true) });

const keys = () =>
  key.value === null ? [] : [{ label: t("forget_key"), icon: "key" as const, act: () => { giveKey(null); location.reload(); } }];

const ownCommands = (): Command[] => [
  ...shown().flatMap(({ name, label, icon, commands }) => [{ label: t(label), icon, act: () => go(href(name)) }, ...(commands?.() ?? [])]),
  ...[...themes(), ...languages(), keyboard(), ...keys()].map(({ label, icon, act }) => ({ label, icon, act, hint: t("settings") })),
  { label: t("api_docs"), icon: "file" as const, act: () => void window.open("docs", "_blank", "noopener") },
];

function useShortcuts(): void {
  useEffect(() => {
    const onKey = (event: KeyboardEvent): void => {
      if (!(event.ctrlKey || event.metaKey) || event.key.toLowerCase() !== "k") return;
      event.preventDefault();
      paletteOpen.value = !paletteOpen.value;
    };
    addEventListener("keydown", onKey);
    return () => removeEventListener("keydown", onKey);
  }, []);
}

function Banner() {
  if (!reachable.value) return <div class="banner bad" role="alert"><Icon name="alert" size={16} />{t("unreachable")}</div>;
  if (otherVersion.value === null) return null;
  return (
    <div class="banner" role="status">
      {t("other_version", { version: otherVersion.value })} <Button class="small" onClick={() => location.reload()}>{t("reload")}</Button>
    </div>
  );
}

function Lost() {
  return (
    <Frame title={t("not_found")}>
      <EmptyState icon="search" title={t("not_found")}><a class="button" href={href()}>{t("page_chat")}</a></EmptyState>
    </Frame>
  );
}

function KeyDialog() {
  const [typed, setTyped] = useState("");
  const submit = (event: Event): void => {
    event.preventDefault();
    if (typed.trim()) giveKey(typed.trim());
  };
  return (
    <Dialog title={t("key_title")}>
      <form onSubmit={submit}>
        <p>{t(keyWanted.value === "refused" ? "key_refused" : "key_missing")}</p>
        <input class="field" type="password" autoComplete="off" aria-label={t("key_title")} value={typed} autoFocus
          onInput={(event) => setTyped(event.currentTarget.value)} />
        <p class="muted">{t("key_kept")}</p>
        <footer><Button kind="primary" type="submit" disabled={!typed.trim()}>{t("go_on")}</Button></footer>
      </form>
    </Dialog>
  );
}
