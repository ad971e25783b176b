/** A picture that needs the key to be read: small, and as large as the window when it is pressed. */
import { useEffect, useState } from "preact/hooks";
import { blobUrl, type Problem, type Query } from "../api";
import { problemOf } from "../load";
import { Dialog } from "./Dialog";
import { Failure } from "./parts";

/** Of these types the browser may draw. */
export const DRAWN = /^image\/(png|jpeg|gif|webp)$/;

interface Bytes {
  /** Null until the bytes are there. */
  address: string | null;
  problem: Problem | null;
}

/** The address of bytes for as long as the component is shown. */
export function useBlob(path: string, query: Query = {}): Bytes {
  const [found, setFound] = useState<Bytes>({ address: null, problem: null });
  useEffect(() => {
    let made: string | null = null;
    let gone = false;
    void blobUrl(path, query).then((url) => {
      made = url;
      if (gone) URL.revokeObjectURL(url);
      else setFound({ address: url, problem: null });
    }, (error: unknown) => gone || setFound({ address: null, problem: problemOf(error) }));
    return () => {
      gone = true;
      if (made !== null) URL.revokeObjectURL(made);
    };
  }, [path, JSON.stringify(query)]);
  return found;
}

interface Given {
  path: string;
  query?: Query;
  name: string;
}

export function Picture({ path, query = {}, name }: Given) {
  const { address, problem } = useBlob(path, query);
  const [large, setLarge] = useState(false);
  if (problem !== null) return <Failure problem={problem} />;
  if (address === null) return null;
  return (
    <>
      <button type="button" class="picture" title={name} onClick={() => setLarge(true)}><img src={address} alt={name} /></button>
      {large && <Dialog title={name} wide onClose={() => setLarge(false)}><img class="large" src={address} alt={name} /></Dialog>}
    </>
  );
}
