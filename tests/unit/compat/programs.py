"""Programs as users of rocketmq-client-python write them: names, order of calls, callbacks."""

SENDING = """
from rocketmq.client import Producer, Message

producer = Producer("sample-producers")
producer.set_name_server_address(name_srv)
producer.start()
for number in range(3):
    message = Message(topic)
    message.set_keys("key-%d" % number)
    message.set_tags("sample")
    message.set_property("property", "test")
    message.set_body("body %d" % number)
    result = producer.send_sync(message)
    print("status: " + str(result.status) + " id: " + result.msg_id + " offset: " + str(result.offset))
producer.shutdown()

producer = Producer("sample-producers", True)
producer.set_name_server_address(name_srv)
with producer:
    message = Message(topic)
    message.set_body(b"in order")
    result = producer.send_orderly_with_sharding_key(message, "order-1")
    print("status: " + str(result.status) + " id: " + result.msg_id)
"""

CONSUMING = """
from rocketmq.client import PushConsumer, ConsumeStatus


def callback(msg):
    print(msg.id, msg.body, msg.get_property("property"))
    got(msg)
    return ConsumeStatus.CONSUME_SUCCESS


def start_consume_message():
    consumer = PushConsumer(group)
    consumer.set_name_server_address(name_srv)
    consumer.subscribe(topic, callback)
    consumer.start()
    wait()
    consumer.shutdown()


start_consume_message()
"""

TRANSACTIONS = """
from rocketmq.client import Message, TransactionMQProducer, TransactionStatus


def check_callback(msg):
    print("check: " + msg.body.decode("utf-8"))
    return TransactionStatus.COMMIT


def local_execute(msg, user_args):
    print("local: " + msg.id + " " + msg.body.decode("utf-8"))
    return user_args


producer = TransactionMQProducer("sample-transactions", check_callback)
producer.set_name_server_address(name_srv)
producer.start()
for status in (TransactionStatus.COMMIT, TransactionStatus.ROLLBACK, TransactionStatus.UNKNOWN):
    message = Message(topic)
    message.set_body(status.name)
    result = producer.send_message_in_transaction(message, local_execute, status)
    print("status: " + str(result.status) + " id: " + result.msg_id)
wait()
producer.shutdown()
"""


def moved(program: str) -> str:
    """The program after its move: one import line is changed."""
    return program.replace("from rocketmq.client import", "from rmq.compat.rocketmq.client import")
