// RocketMQ's 5.x client for Node: driver.js ENDPOINTS ACTION KEY=VALUE ..., one line for each thing that happens.
const { Producer, SimpleConsumer, PushConsumer, ConsumeResult, FilterExpression, TransactionResolution } = require('rocketmq-client-nodejs');
const { FilterType } = require('rocketmq-client-nodejs/proto/apache/rocketmq/v2/definition_pb');
const quiet = { info() {}, warn() {}, error() {}, debug() {}, close() {} };
const [endpoints, action, ...rest] = process.argv.slice(2);
const given = Object.fromEntries(rest.map(one => [one.slice(0, one.indexOf('=')), one.slice(one.indexOf('=') + 1)]));
const common = { endpoints, requestTimeout: 10000, logger: quiet };
if (given.user) common.sessionCredentials = { accessKey: given.user, accessSecret: given.secret };
const say = line => process.stdout.write(line + '\n');
const said = m => say(`message ${m.body} ${m.deliveryAttempt} ${m.tag || '-'} ${m.keys.join(',')} ${m.properties.get('colour') || '-'}`);
const sleep = seconds => new Promise(done => setTimeout(done, seconds * 1000));
const wanted = () => new Map().set(given.topic, given.sql ? new FilterExpression(given.sql, FilterType.SQL) : given.filter || '*');

async function send() {
  const producer = new Producer({ ...common, topics: [given.topic], checker: { check: async m => { say(`check ${m.body}`); return TransactionResolution.COMMIT; } } });
  await producer.startup();
  for (const body of given.bodies.split(',')) {
    const message = { topic: given.topic, body: Buffer.from(body), tag: given.tag || 't', keys: ['key-' + body], properties: new Map([['colour', given.colour || 'red']]) };
    if (given.group) message.messageGroup = given.group;
    if (given.delay) message.delay = Number(given.delay);
    if (!given.end) { say('sent ' + (await producer.send(message)).messageId); continue; }
    const transaction = producer.beginTransaction();
    say('sent ' + (await producer.send(message, transaction)).messageId);
    if (given.end === 'commit') await transaction.commit();
    if (given.end === 'rollback') await transaction.rollback();
  }
  if (given.end === 'orphan') await sleep(30);
  await producer.shutdown();
}

async function simple() {
  const consumer = new SimpleConsumer({ ...common, consumerGroup: given.consumer, subscriptions: wanted(), awaitDuration: 5000 });
  await consumer.startup();
  say('started');
  const end = Date.now() + Number(given.seconds) * 1000;
  while (Date.now() < end) {
    try {
      for (const message of await consumer.receive(16, 10000)) {
        said(message);
        if (given.ack !== 'no') await consumer.ack(message);
      }
    } catch (error) { say('error ' + error.message); await sleep(1); }
  }
  await consumer.shutdown();
}

async function push() {
  const consumer = new PushConsumer({ ...common, consumerGroup: given.consumer, subscriptions: wanted(), messageListener: { consume: async m => { said(m); return String(m.body) === given.fails && m.deliveryAttempt === 1 ? ConsumeResult.FAILURE : ConsumeResult.SUCCESS; } } });
  await consumer.startup();
  say('started');
  await sleep(Number(given.seconds));
  await consumer.shutdown();
}

({ send, simple, push })[action]().then(() => process.exit(0), error => { say('error ' + error); process.exit(1); });
