//! Log lines in hclog's JSON form on stderr, which go-plugin hands to SPIRE's own log.
//!
//! Source: `go-plugin` `log_entry.go`: `@level` and `@message`, every other member becomes a field of the line. The
//! time is left out: go-plugin sets it, and a time it cannot parse would lose the level.

use std::{fmt, io::Write};

use serde_json::{Map, Value};
use tracing::{
    Event, Level, Subscriber,
    field::{Field, Visit},
};
use tracing_subscriber::{Layer, filter::LevelFilter, layer::Context, prelude::*};

/// Sends this process's `tracing` events to SPIRE. `BANLIEUE_LOG` sets the level (`debug`, `info`, …; default `info`).
///
/// Does nothing when a subscriber is already set.
pub fn init() {
    let level = std::env::var("BANLIEUE_LOG").ok().and_then(|text| text.parse().ok()).unwrap_or(LevelFilter::INFO);
    let _ = tracing_subscriber::registry().with(Hclog.with_filter(level)).try_init();
}

struct Hclog;

impl<S: Subscriber> Layer<S> for Hclog {
    fn on_event(&self, event: &Event<'_>, _: Context<'_, S>) {
        let line = render(event);
        // One write per line: parent and worker share the pipe, and short writes to a pipe do not interleave.
        let _ = std::io::stderr().lock().write_all(line.as_bytes());
    }
}

fn render(event: &Event<'_>) -> String {
    let mut fields = Fields(Map::new());
    event.record(&mut fields);
    let mut line = fields.0;
    let level = match *event.metadata().level() {
        Level::ERROR => "error",
        Level::WARN => "warn",
        Level::INFO => "info",
        Level::DEBUG => "debug",
        Level::TRACE => "trace",
    };
    let message = line.remove("message").unwrap_or(Value::String(event.metadata().name().to_owned()));
    line.insert("@message".to_owned(), message);
    line.insert("@level".to_owned(), level.into());
    let mut text = Value::Object(line).to_string();
    text.push('\n');
    text
}

struct Fields(Map<String, Value>);

impl Visit for Fields {
    fn record_debug(&mut self, field: &Field, value: &dyn fmt::Debug) {
        self.0.insert(field.name().to_owned(), format!("{value:?}").into());
    }
    fn record_str(&mut self, field: &Field, value: &str) {
        self.0.insert(field.name().to_owned(), value.into());
    }
    fn record_u64(&mut self, field: &Field, value: u64) {
        self.0.insert(field.name().to_owned(), value.into());
    }
    fn record_i64(&mut self, field: &Field, value: i64) {
        self.0.insert(field.name().to_owned(), value.into());
    }
    fn record_bool(&mut self, field: &Field, value: bool) {
        self.0.insert(field.name().to_owned(), value.into());
    }
}
