// Errors.

/** What this module raises on purpose: `code` is a word for programs, `message` a sentence for people. */
export class Q8taError extends Error {
  constructor(code, message, cause) {
    super(message, cause === undefined ? undefined : { cause });
    this.name = "Q8taError";
    this.code = code;
  }
}

export const gone = (why) =>
  new Q8taError("lost", `the GPU device was lost (${why}): await net.reopen() loads it again`);
