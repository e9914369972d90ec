// RocketMQ's 5.x client for Node: driver.js ENDPOINTS ACTION KEY=VALUE ..., one line for each thing that happens.
const { Producer, SimpleConsumer, PushConsumer, ConsumeResult, FilterExpression } = require('rocketmq-client-nodejs');
const { FilterType, TransactionResolution } = require('rocketmq-client-nodejs/proto/apache/rocketmq/v2/definition_pb');
const quiet = { info() {}, warn() {}, error() {}, debug() {}, close() {} };
const [endpoints, action, ...rest] = process.argv.slice(2);
const given = Object.fromEntries(rest.map(one => [one.slice(0, one.indexOf('=')), one.slice(one.indexOf('=') + 1)]));
const common = { endpoints, requestTimeout: 10000, logger: quiet, sslEnabled: 'tls' in given };
if (given.user) common.sessionCredentials = { accessKey: given.user, accessSecret: given.secret };
const say = line => process.stdout.write(line.replace(/\n/g, ' ') + '\n');
const nameOf = m => String(m.body).split('.')[0];
const said = m => say(`message ${nameOf(m)} ${m.deliveryAttempt} ${m.tag || '-'} ${m.keys.join(',') || '-'} ${m.properties.get('colour') || '-'} ${m.messageGroup || '-'} ${m.body.length}`);
const sleep = seconds => new Promise(done => setTimeout(done, seconds * 1000));
const wanted = () => new Map().set(given.topic, given.sql ? new FilterExpression(given.sql, FilterType.SQL) : given.filter || '*');

// Say an error; with `retry` act again until it works.
async function tried(action) {
  for (;;) {
    try { return await action(); } catch (error) {
      say('error ' + error.message);
      if (!given.retry) return null;
      await sleep(0.5);
    }
  }
}

async function send() {
  const producer = new Producer({ ...common, topics: [given.topic], checker: { check: async m => { say(`check ${m.body}`); return TransactionResolution.COMMIT; } } });
  await producer.startup();
  say('started');
  for (const body of given.bodies.split(',').filter(one => one)) {
    const message = { topic: given.topic, body: Buffer.from(body + '.'.repeat(Number(given.padding || 0))), tag: given.tag || 't', keys: ['key-' + body], properties: new Map([['colour', given.colour || 'red']]) };
    if (given.group) message.messageGroup = given.group;
    if (given.delay) message.delay = Number(given.delay);
    if (!given.end) {
      const receipt = await tried(() => producer.send(message));
      if (receipt) {
        say(`sent ${body} ${receipt.messageId}`);
        if (given.recall) { await producer.recallMessage(given.topic, receipt.recallHandle); say('recalled ' + body); }
      }
      await sleep(Number(given.every || 0) / 1000);
      continue;
    }
    const transaction = producer.beginTransaction();
    say(`sent ${body} ${(await producer.send(message, transaction)).messageId}`);
    if (given.end === 'commit') await transaction.commit();
    if (given.end === 'rollback') await transaction.rollback();
  }
  if (given.end === 'orphan') await sleep(60);
  await producer.shutdown();
}

async function simple() {
  const consumer = new SimpleConsumer({ ...common, consumerGroup: given.consumer, subscriptions: wanted(), awaitDuration: 5000 });
  await consumer.startup();
  say('started');
  const end = Date.now() + Number(given.seconds) * 1000;
  let left = Number(given.count || 1000000);
  while (Date.now() < end && left > 0) {
    try {
      for (const message of await consumer.receive(Number(given.batch || 16), 10000)) {
        said(message);
        left -= 1;
        if (given.change && message.deliveryAttempt === 1) await consumer.changeInvisibleDuration(message, Number(given.change) * 1000);
        else if (given.ack !== 'no') { await consumer.ack(message); say('acked ' + nameOf(message)); }
      }
    } catch (error) { say('error ' + error.message); await sleep(1); }
  }
  await consumer.shutdown();
}

async function push() {
  let calls = 0;
  const consume = async m => { said(m); return nameOf(m) === given.fails && ++calls <= Number(given.times || 1) ? ConsumeResult.FAILURE : ConsumeResult.SUCCESS; };
  const consumer = new PushConsumer({ ...common, consumerGroup: given.consumer, subscriptions: wanted(), messageListener: { consume } });
  await consumer.startup();
  say('started');
  await sleep(Number(given.seconds));
  await consumer.shutdown();
}

({ send, simple, push })[action]().then(() => process.exit(0), error => { say('error ' + error); process.exit(1); });
