// What the service says when something is wrong: a google.rpc.Status with details, in the trailers of a call or in an operation.
import grpc from '@grpc/grpc-js';
import { decode } from './service.mjs';

const TRAILER = 'grpc-status-details-bin';
const READ = ['ErrorInfo', 'RetryInfo', 'BadRequest', 'PreconditionFailure'];

export class ServiceError extends Error {
  /**
   * code: the name of a gRPC status; reason: of ErrorInfo (docs/service.md lists them), '' if there is none; retryAfter: seconds, null if
   * the server names no time; details: by their message's name; requestId: what the server's log calls the call.
   */
  constructor(code, message, details = {}) {
    super(message);
    this.name = 'ServiceError';
    this.code = code;
    this.details = details;
    this.reason = details.ErrorInfo?.reason ?? '';
    this.requestId = details.ErrorInfo?.metadata?.request ?? '';
    const delay = details.RetryInfo?.retryDelay;
    this.retryAfter = delay ? Number(delay.seconds) + delay.nanos / 1e9 : null;
  }

  /** Whether the same call may succeed later. */
  get retriable() {
    return this.code === 'UNAVAILABLE' || (this.code === 'RESOURCE_EXHAUSTED' && this.retryAfter !== null);
  }

  toString() {
    const fields = (this.details.BadRequest?.fieldViolations ?? []).map((v) => v.field).filter(Boolean);
    const where = fields.length ? `; field ${fields.join(', ')}` : '';
    const log = this.requestId ? `; request ${this.requestId}` : '';
    return `${this.message} [${this.code}${this.reason ? `, ${this.reason}` : ''}${where}${log}]`;
  }
}

/** Of a decoded google.rpc.Status. */
export function fromStatus(status) {
  const details = {};
  for (const any of status.details ?? []) {
    const name = any.type_url.split('/').pop();
    const short = name.replace('google.rpc.', '');
    if (name !== short && READ.includes(short)) {
      try {
        details[short] = decode(name, any.value);
      } catch {
        // a detail that cannot be read says nothing
      }
    }
  }
  return new ServiceError(grpc.status[status.code] ?? 'UNKNOWN', status.message, details);
}

/** Of what a call of @grpc/grpc-js failed with. */
export function fromCall(error) {
  if (error instanceof ServiceError || error.code === undefined) return error;
  const code = grpc.status[error.code] ?? 'UNKNOWN';
  const [bytes] = error.metadata?.get(TRAILER) ?? [];
  if (bytes !== undefined) {
    try {
      const full = fromStatus(decode('google.rpc.Status', bytes));
      full.code = code; // the status of the call itself decides
      return full;
    } catch {
      // not a Status: what the call says remains
    }
  }
  return new ServiceError(code, error.details || error.message);
}
