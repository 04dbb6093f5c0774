#!/usr/bin/env node
// Sends a graph to a disc-tf-server, waits for it, writes the result. See README.md.
import { readFileSync, renameSync, writeFileSync } from 'node:fs';
import { parseArgs } from 'node:util';
import { Client } from './lib/client.mjs';
import { ServiceError } from './lib/errors.mjs';
import { decode, encode } from './lib/service.mjs';

const USAGE = `usage: node optimize.mjs --address HOST:PORT [connection] (--request FILE | --graph FILE --outputs NAMES | --operation NAME) -o FILE

what is asked for
  --request FILE      an OptimizeRequest, made by: disc-tf optimize GRAPH --remote-dry-run --remote-request FILE   (weights stay at home)
  --graph FILE        a frozen GraphDef (.pb) that is sent whole: ITS WEIGHTS TRAVEL
  --outputs A,B       with --graph: the tensors that are fetched
  --targets A,B       with --graph: instruction sets (default: all that the server has)
  --operation NAME    an operation that was started before ("operations/...")
what is done
  -o, --output FILE   the OptimizeResult, for: disc-tf optimize GRAPH -o OUT --remote-result FILE
  --detach            print the operation's name and leave; the work goes on
  --timeout SECONDS   for the work, waiting included (default: the server's limit)
connection
  --ca FILE           the server's certificate authority (PEM); switches TLS on
  --tls               TLS with the system's authorities
  --token-file FILE   a bearer token; sent over TLS or to this machine only
`;

class Usage extends Error {}

function options() {
  const text = { type: 'string' };
  const flag = { type: 'boolean' };
  try {
    return parseArgs({
      options: {
        address: text, request: text, graph: text, outputs: text, targets: text, operation: text, output: { ...text, short: 'o' },
        timeout: text, ca: text, 'token-file': text, tls: flag, detach: flag, help: flag,
      },
    }).values;
  } catch (error) {
    throw new Usage(error.message);
  }
}

function check(args) {
  if (!args.address) throw new Usage('--address HOST:PORT is wanted');
  const asked = ['request', 'graph', 'operation'].filter((name) => args[name] !== undefined);
  if (asked.length !== 1) throw new Usage('one of --request, --graph and --operation is wanted');
  if (args.graph !== undefined && !args.outputs) throw new Usage('--graph needs --outputs: the tensors that are fetched');
  if (args.graph === undefined && (args.outputs || args.targets)) throw new Usage('--outputs and --targets go with --graph');
  if (args.detach && args.operation) throw new Usage('--detach starts an operation; --operation waits for one');
  if (!args.detach && !args.output) throw new Usage('-o FILE is wanted, or --detach');
  if (args.timeout !== undefined && !(Number(args.timeout) > 0)) throw new Usage('--timeout: a positive number of seconds is wanted');
}

const list = (words) => words.split(',').map((w) => w.trim()).filter(Boolean);

/** The OptimizeRequest of the flags. */
async function requestOf(args, client) {
  let request;
  if (args.request !== undefined) {
    try {
      request = decode('disc_tf.v1.OptimizeRequest', readFileSync(args.request));
    } catch (error) {
      throw error.code ? error : new Usage(`${args.request}: not an OptimizeRequest (${error.message})`);
    }
    if (!request.graph?.outputs?.length) throw new Usage(`${args.request}: not an OptimizeRequest: it names no graph with outputs`);
  } else {
    const { targets } = await client.capabilities();
    const unknown = list(args.targets ?? '').filter((t) => !targets.includes(t));
    if (unknown.length) throw new Usage(`the server does not compile for ${unknown.join(', ')}; it has ${targets.join(', ')}`);
    request = { graph: { inline: readFileSync(args.graph), outputs: list(args.outputs) }, options: { targets: list(args.targets ?? '') } };
  }
  if (args.timeout !== undefined) {
    const seconds = Math.floor(Number(args.timeout));
    request.timeout = { seconds, nanos: Math.round((Number(args.timeout) - seconds) * 1e9) };
  }
  return { ...request, clientVersion: 'node-example/0.1' };
}

function show(event) {
  const { sequence, queued, progress, diagnostic } = event;
  if (event.event === 'queued') console.error(`[${sequence}] waiting: ${queued.position || 'soon'}`);
  if (event.event === 'progress') {
    console.error(`[${sequence}] ${progress.text || progress.phase}${progress.fraction >= 0 ? ` (${Math.round(100 * progress.fraction)} %)` : ''}`);
  }
  if (event.event === 'diagnostic') console.error(`[${sequence}] ${diagnostic.severity.toLowerCase()}: ${diagnostic.message}`);
}

async function run(args) {
  const token = args['token-file'] ? readFileSync(args['token-file'], 'utf8').trim() : '';
  const where = { address: args.address, ca: args.ca, tls: args.tls, token };
  const client = new Client(where, { say: (line) => console.error(line) });
  try {
    let result;
    if (args.operation) {
      result = await client.wait(args.operation, (state) => console.error(`${args.operation}: ${state}`));
    } else {
      let named = false;
      result = await client.optimize(await requestOf(args, client), (event) => {
        if (!named) console.log(event.operation);
        named = true;
        if (args.detach) return 'leave';
        show(event);
        return undefined;
      });
    }
    if (result === null) return;
    const inline = await client.contentOf(result);
    const written = { inline, cached: result.cached, ...(result.signature ? { signature: result.signature } : {}) };
    writeFileSync(`${args.output}.part`, encode('disc_tf.v1.OptimizeResult', written));
    renameSync(`${args.output}.part`, args.output);
    const { clusters, compilerVersion } = decode('disc_tf.v1.CompileResult', inline);
    const from = result.cached ? ', from the cache' : '';
    const signed = result.signature ? 'signed (the signature is checked by disc-tf)' : 'not signed';
    console.error(`${clusters.length} clusters by disc-tf ${compilerVersion}${from}; ${signed}; wrote ${args.output}`);
  } finally {
    client.close();
  }
}

try {
  const args = options();
  if (args.help) {
    console.log(USAGE);
  } else {
    check(args);
    await run(args);
  }
} catch (error) {
  if (error instanceof Usage) {
    console.error(`optimize: ${error.message}\n(node optimize.mjs --help)`);
    process.exitCode = 2;
  } else if (error instanceof ServiceError || error.code || error.message) {
    console.error(`optimize: ${error instanceof ServiceError ? error : error.message}`);
    process.exitCode = 3;
  } else {
    throw error;
  }
}
