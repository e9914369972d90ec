// driver.js NAMESRV: many Node clients in one process, told what to do by JSON lines on the standard input, as those of
// ../java/Driver.java. Each line has "do" (one of `jobs`) and "id"; what happens is told in JSON lines with that id under
// "for". It ends when its input does.
'use strict';

const readline = require('readline');
const { Consumer, Message, Producer } = require('ali-ons');

const namesrv = process.argv[2];
const closers = new Map();
const quiet = () => {};
// `httpclient` is for a list of name servers at a URL, which is not asked for where `nameSrv` is set.
const common = {
  nameSrv: [namesrv],
  httpclient: { request: quiet },
  logger: { debug: quiet, info: quiet, warn: quiet, error: quiet },
};

const sleep = milliseconds => new Promise(resolve => setTimeout(resolve, milliseconds));
const text = body => body.toString().trim();

function tell(todo, what) {
  process.stdout.write(JSON.stringify({ for: todo.id, ...what }) + '\n');
}

function tellAll(todo, key, bodies) {
  for (let at = 0; at < bodies.length; at += 2000) tell(todo, { [key]: bodies.slice(at, at + 2000) });
}

// Clients with one instance name share connections and routes.
function settings(todo) {
  const found = { ...common, instanceName: `driver-${todo.id}-${process.pid}` };
  if (todo.poll) found.pollNameServerInteval = todo.poll; // spelled so there
  return found;
}

function message(todo, body) {
  const made = new Message(todo.topic, todo.tags || null, body.padEnd(todo.size || 0));
  made.keys = [body];
  if (todo.key) made.shardingKey = todo.key;
  if (todo.delay) made.delayTimeLevel = todo.delay;
  Object.assign(made.properties, todo.properties);
  return made;
}

async function producer(todo, more = {}) {
  const made = new Producer({ ...settings(todo), producerGroup: `driver-${todo.id}`, sendMsgTimeout: 10000, ...more });
  made.on('error', quiet); // what fails is told by send()
  await made.ready();
  return made;
}

async function consumer(todo, handle, more = {}) {
  const made = new Consumer({
    ...settings(todo), consumerGroup: todo.group, consumeFromWhere: 'CONSUME_FROM_FIRST_OFFSET', ...more });
  made.on('error', quiet);
  const wanted = todo.sql ? { expressionType: 'SQL92', subString: todo.sql } : todo.tags || '*';
  made.subscribe(todo.topic, wanted, handle);
  closers.set(todo.id, () => made.close());
  await made.ready();
  return made;
}

const jobs = {
  // "bodies" to "topic"; "key" orders them, "delay" is a level.
  async send(todo) {
    const made = await producer(todo);
    for (const body of todo.bodies) {
      const result = await made.send(message(todo, body));
      tell(todo, {
        sent: body, status: result.sendStatus, queue: Number(result.messageQueue.queueId), offset: Number(result.queueOffset),
        id: result.msgId });
    }
    await made.close();
    tell(todo, { done: true });
  },

  // "threads" that send to "topic" one message after the other until stopped. Then it tells the bodies that were acknowledged,
  // how many sends failed, why the first did, and pauses of more than half a second between acknowledgements: when each
  // ended and how long it was, in ms. "poll" is how often it asks for routes, in ms.
  async pour(todo) {
    const made = await producer(todo, { sendMsgTimeout: 3000 });
    const acknowledged = [], pauses = [], why = [];
    let failed = 0, last = Date.now();
    closers.set(todo.id, quiet);
    async function thread(name) {
      for (let count = 0; closers.has(todo.id); count++) {
        const body = `node-${name}-${count}`;
        try {
          const result = await made.send(message(todo, body));
          if (result.sendStatus !== 'SEND_OK') throw new Error(result.sendStatus);
        } catch (error) {
          failed++;
          if (why.length < 20) why.push(`${error}`);
          await sleep(20);
          continue;
        }
        const now = Date.now();
        if (now - last > 500) pauses.push([now, now - last]);
        last = now;
        acknowledged.push(body);
      }
    }
    await Promise.all(Array.from({ length: todo.threads }, (_, number) => thread(`${todo.id}-${number}`)));
    await made.close();
    tellAll(todo, 'acknowledged', acknowledged);
    tell(todo, { why });
    tell(todo, { failed, pauses });
    tell(todo, { done: true });
  },

  // A push consumer of "group" and "topic" that keeps the bodies; tells how many different ones there are whenever that has
  // changed, and when it is stopped which, and its pauses, as for pour, since the first message.
  async gather(todo) {
    const bodies = new Set(), pauses = [], late = [], stalls = new Map();
    let last = Infinity;
    await consumer(todo, async got => {
      const now = Date.now(), age = now - Number(got.storeTimestamp);
      if (!bodies.has(text(got.body)) && age > 500) {
        let stall = stalls.get(got.queueId);
        if (!stall || now - stall.at > 1000) late.push(stall = { ms: 0 });
        stalls.set(got.queueId, stall);
        Object.assign(stall, { ms: Math.max(stall.ms, age), at: now });
      }
      bodies.add(text(got.body));
      if (now - last > 500) pauses.push([now, now - last]);
      last = now;
    }, { parallelConsumeLimit: 32 });
    for (let told = -1; closers.has(todo.id); await sleep(200)) {
      if (bodies.size !== told) tell(todo, { count: told = bodies.size });
    }
    tellAll(todo, 'got', [...bodies]);
    tell(todo, { pauses, late: late.map(stall => stall.ms) });
    tell(todo, { done: true });
  },

  // A push consumer of "group" and "topic" until it is stopped. "broadcasting", "tags", "sql"; bodies in "fail" fail always,
  // "most" is how often they are tried again.
  async consume(todo) {
    const failing = new Set(todo.fail);
    const more = { isBroadcast: !!todo.broadcasting };
    if (todo.most) more.maxReconsumeTimes = todo.most;
    await consumer(todo, async got => {
      tell(todo, {
        body: text(got.body), size: got.body.length, topic: got.topic, queue: got.queueId, offset: Number(got.queueOffset),
        times: got.reconsumeTimes, id: got.msgId, at: Date.now(), properties: got.properties });
      // Not ACTION_RETRY, which the client does not look at when it is a message's second time.
      if (failing.has(text(got.body))) throw new Error('no such customer');
    }, more);
    tell(todo, { started: true });
  },

  async stop(todo) {
    const close = closers.get(todo.id);
    closers.delete(todo.id);
    await close();
    tell(todo, { stopped: true });
  },
};

const lines = readline.createInterface({ input: process.stdin });
lines.on('line', line => {
  const todo = JSON.parse(line);
  jobs[todo.do](todo).catch(error => tell(todo, { error: String(error) }));
});
lines.on('close', () => process.exit(0));
