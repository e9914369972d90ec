// node client.js PORT COUNT: send messages to a queue, wait for their outcomes, receive and accept them.
const container = require('rhea');
const [port, count] = process.argv.slice(2).map(Number);
let accepted = 0, sent = 0;
const got = [];

container.on('connection_open', context => context.connection.open_sender('Orders'));
container.on('sendable', context => {
  while (context.sender.sendable() && sent < count) {
    context.sender.send({message_id: sent, body: {number: sent++}, application_properties: {kind: 'rhea'}});
  }
});
container.on('accepted', context => {
  if (++accepted === count) context.connection.open_receiver({source: 'Orders', credit_window: 10, autoaccept: true});
});
container.on('message', context => {
  got.push(`${context.message.body.number}${context.message.application_properties.kind}`);
  if (got.length === count) context.connection.close();
});
container.on('connection_close', () => console.log('ok ' + got.join(' ')));
for (const name of ['rejected', 'sender_error', 'receiver_error', 'connection_error']) {
  container.on(name, context => { console.log(`failed ${name} ${context.error || ''}`); process.exit(1); });
}
container.connect({port: port, host: '127.0.0.1', reconnect: false});
