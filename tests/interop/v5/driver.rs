// RocketMQ's 5.x client for Rust: driver ENDPOINTS ACTION KEY=VALUE ..., one line for each thing that happens.
// This client has simple consumers only, and neither changes an invisible time nor recalls a message.

use std::collections::HashMap;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use rocketmq::conf::{ClientOption, ProducerOption, SimpleConsumerOption};
use rocketmq::model::common::{FilterExpression, FilterType};
use rocketmq::model::message::{MessageBuilder, MessageView};
use rocketmq::model::transaction::{Transaction, TransactionResolution};
use rocketmq::{Producer, SimpleConsumer};
use tokio::time::sleep;

type Given = HashMap<String, String>;
type Failure = Box<dyn std::error::Error>;

fn say(line: String) {
    println!("{}", line.replace('\n', " "));
}

fn number(given: &Given, key: &str, default: u64) -> u64 {
    given.get(key).map_or(default, |text| text.parse().unwrap())
}

fn name_of(message: &MessageView) -> String {
    String::from_utf8_lossy(message.body()).split('.').next().unwrap().to_string()
}

fn said(message: &MessageView) {
    let keys = message.keys().join(",");
    say(format!(
        "message {} {} {} {} {} {} {}",
        name_of(message),
        message.delivery_attempt(),
        message.tag().unwrap_or("-"),
        if keys.is_empty() { "-" } else { &keys },
        message.properties().get("colour").map_or("-", |text| text),
        message.message_group().unwrap_or("-"),
        message.body().len()
    ));
}

fn options(endpoints: &str, given: &Given) -> ClientOption {
    let mut options = ClientOption::default();
    options.set_access_url(endpoints);
    options.set_enable_tls(given.contains_key("tls"));
    options.set_timeout(Duration::from_secs(10));
    options.set_long_polling_timeout(Duration::from_secs(8));
    if let (Some(user), Some(secret)) = (given.get("user"), given.get("secret")) {
        options.set_access_key(user);
        options.set_secret_key(secret);
    }
    options
}

fn builder(body: &str, given: &Given) -> MessageBuilder {
    let padded = body.to_string() + &".".repeat(number(given, "padding", 0) as usize);
    let colour = given.get("colour").map_or("red", |text| text);
    let mut made = MessageBuilder::builder()
        .set_topic(&given["topic"])
        .set_body(padded.into_bytes())
        .set_tag(given.get("tag").map_or("t", |text| text))
        .set_keys(vec!["key-".to_string() + body])
        .set_properties(HashMap::from([("colour".to_string(), colour.to_string())]));
    if let Some(group) = given.get("group") {
        made = made.set_message_group(group);
    }
    if given.contains_key("delay") {
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_secs();
        made = made.set_delivery_timestamp((now + number(given, "delay", 0) / 1000) as i64);
    }
    made
}

async fn send(endpoints: &str, given: &Given) -> Result<(), Failure> {
    let mut option = ProducerOption::default();
    option.set_topics(vec![given["topic"].clone()]);
    let end = given.get("end").map_or("", |text| text).to_string();
    let client = options(endpoints, given);
    let mut producer = if end.is_empty() {
        Producer::new(option, client)?
    } else {
        let check = |_: String, message: MessageView| {
            say(format!("check {}", String::from_utf8_lossy(message.body())));
            TransactionResolution::COMMIT
        };
        Producer::new_transaction_producer(option, client, Box::new(check))?
    };
    producer.start().await?;
    say("started".to_string());
    for body in given["bodies"].split(',').filter(|one| !one.is_empty()) {
        if !end.is_empty() {
            let message = builder(body, given).enable_transaction().build()?;
            let transaction = producer.send_transaction_message(message).await?;
            say(format!("sent {} {}", body, transaction.message_id()));
            match end.as_str() {
                "commit" => transaction.commit().await?,
                "rollback" => transaction.rollback().await?,
                _ => (),
            }
            continue;
        }
        loop {
            match producer.send(builder(body, given).build()?).await {
                Ok(receipt) => {
                    say(format!("sent {} {}", body, receipt.message_id()));
                    break;
                }
                Err(error) => say(format!("error {}", error)),
            }
            if !given.contains_key("retry") {
                break;
            }
            sleep(Duration::from_millis(500)).await;
        }
        sleep(Duration::from_millis(number(given, "every", 0))).await;
    }
    if end == "orphan" {
        sleep(Duration::from_secs(60)).await;
    }
    producer.shutdown().await?;
    Ok(())
}

async fn simple(endpoints: &str, given: &Given) -> Result<(), Failure> {
    let mut option = SimpleConsumerOption::default();
    option.set_topics(vec![given["topic"].clone()]);
    option.set_consumer_group(&given["consumer"]);
    let mut consumer = SimpleConsumer::new(option, options(endpoints, given))?;
    consumer.start().await?;
    say("started".to_string());
    let wanted = match given.get("sql") {
        Some(text) => FilterExpression::new(FilterType::Sql, text),
        None => FilterExpression::new(FilterType::Tag, given.get("filter").map_or("*", |text| text)),
    };
    let end = Instant::now() + Duration::from_secs(number(given, "seconds", 0));
    let mut left = number(given, "count", 1_000_000) as i64;
    let batch = number(given, "batch", 16) as i32;
    while Instant::now() < end && left > 0 {
        match consumer.receive_with(&given["topic"], &wanted, batch, Duration::from_secs(10)).await {
            Err(error) => {
                say(format!("error {}", error));
                sleep(Duration::from_secs(1)).await;
            }
            Ok(messages) => {
                for message in &messages {
                    said(message);
                    left -= 1;
                    if given.get("ack").map_or(true, |text| text != "no") {
                        match consumer.ack(message).await {
                            Ok(_) => say(format!("acked {}", name_of(message))),
                            Err(error) => say(format!("error {}", error)),
                        }
                    }
                }
            }
        }
    }
    consumer.shutdown().await?;
    Ok(())
}

#[tokio::main]
async fn main() {
    let words: Vec<String> = std::env::args().collect();
    let given: Given = words[3..]
        .iter()
        .filter_map(|one| one.split_once('='))
        .map(|(key, value)| (key.to_string(), value.to_string()))
        .collect();
    let done = match words[2].as_str() {
        "send" => send(&words[1], &given).await,
        "simple" => simple(&words[1], &given).await,
        other => Err(format!("this client has no {}", other).into()),
    };
    if let Err(error) = done {
        say(format!("error {}", error));
        std::process::exit(1);
    }
}
