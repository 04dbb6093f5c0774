// The service's declarations, loaded from the .proto files at run time, and a connection to a server.
import { readFileSync } from 'node:fs';
import { fileURLToPath } from 'node:url';
import grpc from '@grpc/grpc-js';
import loader from '@grpc/proto-loader';
import googleProtos from 'google-proto-files';

const OURS = fileURLToPath(new URL('../../../proto', import.meta.url));

export const definitions = loader.loadSync(
  ['disc_tf/v1/optimizer.proto', 'google/longrunning/operations.proto', 'google/rpc/error_details.proto', 'google/rpc/status.proto'],
  { includeDirs: [process.env.DISC_TF_PROTO ?? OURS, googleProtos.getProtoPath('..')], longs: Number, enums: String, oneofs: true, defaults: true },
);
const packages = grpc.loadPackageDefinition(definitions);

/** Bytes <-> a message by its full name. */
export const decode = (name, bytes) => definitions[name].deserialize(Buffer.from(bytes));
export const encode = (name, message) => definitions[name].serialize(message);

/** A token goes to this machine only, unless there is TLS. */
function isLocal(address) {
  const host = address.replace(/:\d+$/, '').replace(/^\[|\]$/g, '');
  return address.startsWith('unix:') || host === 'localhost' || host === '::1' || /^127\./.test(host);
}

/**
 * Stubs of the three services that share one connection.
 * @param {{address: string, ca?: string, tls?: boolean, token?: string}} where  ca: a PEM file
 */
export function connect({ address, ca, tls, token }) {
  const secure = Boolean(tls || ca);
  if (token && !secure && !isLocal(address)) throw new Error(`a token goes to ${address} over TLS only: give --ca FILE or --tls`);
  const credentials = secure ? grpc.credentials.createSsl(ca ? readFileSync(ca) : null) : grpc.credentials.createInsecure();
  const options = {
    'grpc.default_compression_algorithm': 2, // gzip
    'grpc.keepalive_time_ms': 30_000,
    'grpc.keepalive_timeout_ms': 20_000,
    'grpc.max_receive_message_length': 64 << 20,
    // what is tried again is decided in retry.mjs, by the service's own rules
    'grpc.enable_retries': 0,
  };
  const { Optimizer, ContentStore } = packages.disc_tf.v1;
  const { Operations } = packages.google.longrunning;
  const optimizer = new Optimizer(address, credentials, options);
  const shared = { ...options, channelOverride: optimizer.getChannel() };
  const metadata = () => {
    const made = new grpc.Metadata();
    if (token) made.set('authorization', `Bearer ${token}`);
    return made;
  };
  return {
    optimizer,
    content: new ContentStore(address, credentials, shared),
    operations: new Operations(address, credentials, shared),
    metadata,
    close: () => optimizer.close(),
  };
}
