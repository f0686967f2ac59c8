//! The way between controller and server: calls wait here until the scheduler lets them through, in any order.

use std::future::Future;
use std::pin::Pin;
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll, Waker};

use async_trait::async_trait;
use banlieue_controller::api::{Api, ApiError, Request};

#[derive(Default)]
struct Slot {
    answer: Option<Result<String, ApiError>>,
    waker: Option<Waker>,
}

/// A call on its way.
pub struct Pending {
    pub request: Request,
    slot: Arc<Mutex<Slot>>,
}

impl Pending {
    pub fn answer(&self, answer: Result<String, ApiError>) {
        let mut slot = self.slot.lock().unwrap();
        slot.answer = Some(answer);
        // The scheduler polls every task anyway; sets of futures inside a task go by their wakers.
        if let Some(waker) = slot.waker.take() {
            waker.wake();
        }
    }
}

/// Calls on their way to the server.
#[derive(Clone, Default)]
pub struct Network(pub Arc<Mutex<Vec<Pending>>>);

struct Waiting(Arc<Mutex<Slot>>);

impl Future for Waiting {
    type Output = Result<String, ApiError>;

    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        let mut slot = self.0.lock().unwrap();
        match slot.answer.take() {
            Some(answer) => Poll::Ready(answer),
            None => {
                slot.waker = Some(context.waker().clone());
                Poll::Pending
            }
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
