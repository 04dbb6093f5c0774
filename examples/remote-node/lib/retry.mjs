// Trying again: exponential pauses with jitter, and a bound.
import { setTimeout as sleep } from 'node:timers/promises';
import { fromCall } from './errors.mjs';

export class Retries {
  constructor({ attempts = 6, first = 0.25, longest = 15, say = () => {} } = {}) {
    Object.assign(this, { attempts, first, longest, say });
    this.reset();
  }

  /** It went on: a later failure starts anew. */
  reset() {
    this.failed = 0;
  }

  /** Waits after a failure; throws it if trying again does not help, or was tried often enough. */
  async after(error) {
    const failure = fromCall(error);
    if (!failure.retriable || ++this.failed >= this.attempts) throw failure;
    const step = Math.min(this.first * 2 ** (this.failed - 1), this.longest);
    const pause = Math.max(step * (0.5 + Math.random() / 2), Math.min(failure.retryAfter ?? 0, 60));
    this.say(`${failure}; again in ${pause.toFixed(2)} s`);
    await sleep(pause * 1000);
  }
}

/** The value of `call()`, tried again while that helps. */
export async function retried(call, options) {
  const retries = new Retries(options);
  for (;;) {
    try {
      return await call();
    } catch (error) {
      await retries.after(error);
    }
  }
}
