//! The guest agent's own identity, watched: its node SVID from the SPIRE agent beside it.

use std::time::Duration;

use banlieue_protocol::names::SpiffeId;
use futures::StreamExt;
use spiffe::WorkloadApiClient;
use tokio::sync::mpsc;

use crate::{agent::SOCKET, life::Event};

const RETRY: Duration = Duration::from_millis(500);

/// Reports [`Event::Identity`] whenever `own` comes or goes, for ever.
pub async fn watch(own: SpiffeId, events: mpsc::Sender<Event>) {
    let mut held = false;
    loop {
        follow(&own, &mut held, &events).await;
        // The stream ended or never began: the agent is away, or has no identity for us.
        if held {
            held = false;
            if events.send(Event::Identity(false)).await.is_err() {
                return;
            }
        }
        tokio::time::sleep(RETRY).await;
    }
}

async fn follow(own: &SpiffeId, held: &mut bool, events: &mpsc::Sender<Event>) {
    let Ok(client) = WorkloadApiClient::connect_to(format!("unix:{SOCKET}")).await else { return };
    let Ok(mut updates) = client.stream_x509_contexts().await else { return };
    while let Some(Ok(context)) = updates.next().await {
        let now = context.svids().iter().any(|s| s.spiffe_id().to_string() == own.as_str());
        if now != *held {
            *held = now;
            if events.send(Event::Identity(now)).await.is_err() {
                return;
            }
        }
    }
}
