//! The way between controller and server: calls wait here until the scheduler lets them through, in any order.

use std::future::Future;
use std::pin::Pin;
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll};

use async_trait::async_trait;
use banlieue_controller::api::{Api, ApiError, Request};

#[derive(Default)]
struct Slot {
    answer: Option<Result<String, ApiError>>,
}

/// A call on its way.
pub struct Pending {
    pub request: Request,
    slot: Arc<Mutex<Slot>>,
}

impl Pending {
    pub fn answer(&self, answer: Result<String, ApiError>) {
        self.slot.lock().unwrap().answer = Some(answer);
    }
}

/// Calls on their way to the server.
#[derive(Clone, Default)]
pub struct Network(pub Arc<Mutex<Vec<Pending>>>);

struct Waiting(Arc<Mutex<Slot>>);

impl Future for Waiting {
    type Output = Result<String, ApiError>;

    fn poll(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<Self::Output> {
        // Nobody is woken: the simulation polls every task after every answer.
        match self.0.lock().unwrap().answer.take() {
            Some(answer) => Poll::Ready(answer),
            None => Poll::Pending,
        }
    }
}

#[async_trait]
impl Api for Network {
    async fn call(&self, request: Request) -> Result<String, ApiError> {
        let slot = Arc::new(Mutex::new(Slot::default()));
        self.0.lock().unwrap().push(Pending { request, slot: slot.clone() });
        Waiting(slot).await
    }
}
