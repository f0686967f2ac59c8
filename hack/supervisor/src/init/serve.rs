//! One connection on the control socket.

use std::time::Duration;

use tokio::io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader};
use tokio::net::UnixStream;

use super::table::{Refused, Table};
use crate::wire::{MAX_LINE, Refusal, Request, Response};
use crate::{DETACHED, KEEP_LOGS, Signal};

/// Answers requests until the client hangs up.
pub(super) async fn connection(stream: UnixStream, table: &Table) {
    let (read, mut write) = stream.into_split();
    let mut read = BufReader::new(read);
    loop {
        let mut line = Vec::new();
        let got = (&mut read).take(MAX_LINE).read_until(b'\n', &mut line).await;
        if got.is_err() || line.last() != Some(&b'\n') {
            return;
        }
        let (response, last) = match serde_json::from_slice(&line) {
            Ok(Request::Shutdown) => (Response::Done, true),
            Ok(request) => {
                let refused = |Refused { kind, message }| Response::Refused { kind, message };
                (answer(request, table).await.unwrap_or_else(refused), false)
            }
            Err(error) => {
                let message = format!("not a request: {error}");
                (Response::Refused { kind: Refusal::Invalid, message }, false)
            }
        };
        let Ok(mut bytes) = serde_json::to_vec(&response) else { return };
        bytes.push(b'\n');
        let sent = write.write_all(&bytes).await;
        if last {
            tracing::info!("ending, as asked");
            std::process::exit(0);
        }
        if sent.is_err() {
            return;
        }
    }
}

async fn answer(request: Request, table: &Table) -> Result<Response, Refused> {
    Ok(match request {
        Request::Spawn(spec) => Response::Spawned { pid: table.spawn(&spec)? },
        Request::Signal { name, signal } => {
            table.signal(&name, signal)?;
            Response::Done
        }
        Request::Stop { name, signal, grace_ms } => {
            // Ended already is what was wanted; unknown is not.
            if table.status(&name)?.state.is_running() {
                ignore_ended(table.signal(&name, signal))?;
                if tokio::time::timeout(Duration::from_millis(grace_ms), table.ended(&name)).await.is_err() {
                    ignore_ended(table.signal(&name, Signal::Kill))?;
                }
            }
            Response::Status(table.ended(&name).await?)
        }
        Request::Wait { name } => Response::Status(table.ended(&name).await?),
        Request::Status { name } => Response::Status(table.status(&name)?),
        Request::List => Response::List(table.list()),
        Request::Forget { name } => {
            table.forget(&name)?;
            Response::Done
        }
        Request::KeepLogs => {
            table.tell_keeper(KEEP_LOGS)?;
            Response::Done
        }
        Request::Detach => {
            table.tell_keeper(DETACHED)?;
            Response::Done
        }
        Request::Shutdown => Response::Done,
    })
}

fn ignore_ended(result: Result<(), Refused>) -> Result<(), Refused> {
    match result {
        Err(Refused { kind: Refusal::NotRunning, .. }) => Ok(()),
        other => other,
    }
}
