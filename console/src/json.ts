/** JSON whose integers stay as they are written: a double rounds those beyond 2^53. A browser that cannot do it rounds them. */
interface Exact {
  rawJSON: (text: string) => unknown;
  isRawJSON: (value: unknown) => boolean;
}
type Reviver = Parameters<typeof JSON.parse>[1];
const exact = JSON as unknown as Partial<Exact>;

/** Raises SyntaxError. `JSON.stringify` writes what it gives to the digit. */
export function parseJson(text: string): unknown {
  return exact.rawJSON !== undefined && /\d{16}/.test(text) ? JSON.parse(text, kept as Reviver) : JSON.parse(text);
}

const kept = (_: string, value: unknown, context?: { source?: string }): unknown => {
  const written = context?.source ?? "";
  return typeof value === "number" && !Number.isSafeInteger(value) && /^-?\d+$/.test(written) ? exact.rawJSON?.(written) : value;
};

/** Whether it is a value without members: also a number that is kept as it was written. */
export const isAtom = (value: unknown): boolean => value === null || typeof value !== "object" || exact.isRawJSON?.(value) === true;
