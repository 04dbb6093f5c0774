// A client of the optimization service: what docs/service.md says of the protocol, in the order in which it is needed.
import { createHash, randomUUID } from 'node:crypto';
import { promisify } from 'node:util';
import { connect, decode } from './service.mjs';
import { ServiceError, fromStatus } from './errors.mjs';
import { Retries, retried } from './retry.mjs';

const CHUNK = 1 << 20;
const UNARY_SECONDS = 300;

export class Client {
  /** where: see `connect`. retries: see `Retries`. say: told in words what goes on. */
  constructor(where, { retries = {}, say = () => {} } = {}) {
    this.service = connect(where);
    this.retries = { ...retries, say };
    this.say = say;
  }

  close() {
    this.service.close();
  }

  // ---- one call each

  #once(stub, method, request, seconds = UNARY_SECONDS) {
    return promisify(stub[method]).call(stub, request, this.service.metadata(), { deadline: Date.now() + seconds * 1000 });
  }

  #unary(...what) {
    return retried(() => this.#once(...what), this.retries);
  }

  capabilities() {
    return this.#unary(this.service.optimizer, 'getCapabilities', {});
  }

  /** Stops the work of an operation. */
  cancel(name) {
    return this.#unary(this.service.operations, 'cancelOperation', { name });
  }

  // ---- an optimization by its stream of events

  /**
   * Sends an OptimizeRequest and follows its events to the OptimizeResult, through as many connections as it takes.
   * onEvent: called with each event once; returning 'leave' ends the following (the work goes on), and gives null.
   */
  async optimize(request, onEvent = () => {}) {
    const full = { ...request, requestId: request.requestId || randomUUID() };
    full.graph = await this.#withinLimits(full.graph);
    return this.#follow(full, onEvent);
  }

  async #follow(request, onEvent) {
    const retries = new Retries(this.retries);
    let operation = '';
    let sequence = 0;
    let last = null;
    for (;;) {
      // without an answer the same request goes again: its request_id makes sure that nothing is begun twice
      const call = operation
        ? this.service.optimizer.watch({ operation, afterSequence: sequence }, this.service.metadata())
        : this.service.optimizer.optimize(request, this.service.metadata());
      call.on('error', () => {}); // the loop below gets it; what comes after the loop is nobody's business
      let failure = new ServiceError('UNAVAILABLE', 'the stream ended without a result');
      try {
        for await (const event of call) {
          operation = event.operation || operation;
          sequence = Math.max(sequence, event.sequence);
          retries.reset();
          if (onEvent(event) === 'leave') return null;
          // read to the end of the stream: leaving before it would look like a dropped connection
          if (event.event === 'result' || event.event === 'error') last = event;
        }
      } catch (error) {
        failure = error;
      } finally {
        call.cancel();
      }
      if (last?.event === 'error') throw fromStatus(last.error);
      if (last) return last.result;
      await retries.after(failure);
      this.say(operation ? `taking ${operation} up again after event ${sequence}` : 'asking again');
    }
  }

  // ---- an optimization by its operation

  /** Waits for an operation by google.longrunning; its OptimizeResult. onState: called with each new state. */
  async wait(name, onState = () => {}, seconds = 30) {
    let last = '';
    for (;;) {
      const timeout = { seconds, nanos: 0 };
      const found = await this.#unary(this.service.operations, 'waitOperation', { name, timeout }, seconds + 30);
      const { state } = found.metadata ? decode('disc_tf.v1.OptimizeMetadata', found.metadata.value) : { state: '' };
      if (state !== last) onState(state);
      last = state;
      if (!found.done) continue;
      if (found.result === 'error') throw fromStatus(found.error);
      return decode('disc_tf.v1.OptimizeResult', found.response.value);
    }
  }

  // ---- content

  /** The CompileResult's bytes. */
  async contentOf(result) {
    return result.content === 'blob' ? this.download(result.blob) : result.inline;
  }

  /** Graphs that are too large for a message are put into the content store. */
  async #withinLimits(graph) {
    if (graph.content === 'blob' || !graph.inline) return graph;
    const { limits } = await this.capabilities();
    if (graph.inline.length <= Math.min(CHUNK, limits.maxInlineBytes)) return graph;
    return { outputs: graph.outputs, feeds: graph.feeds, blob: await this.upload(graph.inline) };
  }

  /** Puts content into the server's store, unless it is there; its Digest. A broken upload goes on where it stopped. */
  async upload(bytes) {
    const digest = { hash: sha256(bytes), sizeBytes: bytes.length };
    const { content } = this.service;
    const { missing } = await this.#unary(content, 'findMissingBlobs', { digests: [digest] });
    if (!missing?.length) return digest;
    const uploadId = randomUUID();
    await retried(async () => {
      const status = await this.#once(content, 'queryWriteStatus', { uploadId, digest });
      if (!status.complete) await this.#write(bytes, digest, uploadId, status.committedSize);
    }, this.retries);
    this.say(`uploaded ${bytes.length} bytes`);
    return digest;
  }

  #write(bytes, digest, uploadId, start) {
    return new Promise((resolve, reject) => {
      const call = this.service.content.writeBlob(this.service.metadata(), (error, answer) => (error ? reject(error) : resolve(answer)));
      call.on('error', reject);
      let at = start;
      const more = () => {
        for (;;) {
          const data = bytes.subarray(at, at + CHUNK);
          const finish = at + data.length >= bytes.length;
          const ready = call.write({ digest, uploadId, writeOffset: at, data, finish });
          at += data.length;
          if (finish) return call.end();
          if (!ready) return call.once('drain', more);
        }
      };
      more();
    });
  }

  /** Content of the server's store, verified; what has arrived before a broken connection is not asked for again. */
  async download(digest) {
    const parts = [];
    let size = 0;
    const retries = new Retries(this.retries);
    while (size < digest.sizeBytes) {
      const call = this.service.content.readBlob({ digest, readOffset: size }, this.service.metadata());
      call.on('error', () => {});
      try {
        for await (const { data } of call) {
          parts.push(data);
          size += data.length;
          if (size > digest.sizeBytes) throw new Error(`the server sent more than the ${digest.sizeBytes} bytes that it announced`);
          retries.reset();
        }
        if (size < digest.sizeBytes) throw new ServiceError('UNAVAILABLE', 'the stream ended before the content did');
      } catch (error) {
        await retries.after(error);
      } finally {
        call.cancel();
      }
    }
    const bytes = Buffer.concat(parts);
    if (sha256(bytes) !== digest.hash) throw new Error('what the server sent is not what its digest says');
    return bytes;
  }
}

function sha256(bytes) {
  return createHash('sha256').update(bytes).digest('hex');
}
