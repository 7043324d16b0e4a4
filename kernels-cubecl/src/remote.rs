//! The server behind a remote device: whether it knows the Jobs, and what it has answered.

use burn::backend::{Backend, DTypeUsage, Dispatch};
use burn::tensor::{DType, Device};
use std::fmt::{Display, Formatter, Result as Written};

use crate::{answers::Answers, device::Kind};

/// The operation that a client asks for first: it gives 1 where a status is in f64, and else 0, of shape `[1]`. As those of all jobs, its name has this version.
#[cfg(feature = "router")]
pub(crate) const ROWS: &str = concat!("amp-", env!("CARGO_PKG_VERSION"), "::rows");

/// The server of a remote device cannot run this crate's operations. The connection is of no more use to this process.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ServerError {
    /// The device, as Burn names it.
    pub device: String,
    /// The reason.
    pub fault: ServerFault,
}

/// The ways in which the server of a remote device can be of no use.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum ServerFault {
    /// It answers, but not to this crate's operations: it was started without them, or with those of another version.
    LacksOperations,
    /// It has ended, or this session on it, or the network to it. Burn's message.
    Gone(String),
    /// It has not answered for so many seconds.
    Silent(u64),
}

impl ServerError {
    /// The error of a remote device that Burn cannot read any more. None of other devices.
    pub(crate) fn gone(device: &Device, reason: &str) -> Option<Self> {
        let lines: Vec<&str> = reason.split_whitespace().collect();
        let fault = ServerFault::Gone(lines.join(" "));
        is_remote(device).then(|| Self::new(device, fault))
    }

    fn new(device: &Device, fault: ServerFault) -> Self {
        let device = format!("{:?}", device.clone().inner());
        Self { device, fault }
    }
}

impl Display for ServerError {
    fn fmt(&self, f: &mut Formatter<'_>) -> Written {
        let device = &self.device;
        match &self.fault {
            ServerFault::LacksOperations => write!(
                f,
                "the server of {device} does not know the operations of burn-amp {}: it was started without them, or with another version. Start one with \
                 `burn-amp serve`, the program of burn-amp's feature `remote-server`, and then this program again",
                env!("CARGO_PKG_VERSION")
            ),
            ServerFault::Gone(reason) => write!(
                f,
                "the server of {device} is gone, or has ended this session, of which its log says why: {reason}. Start it again by `burn-amp serve`, and this \
                 program from its last checkpoint"
            ),
            ServerFault::Silent(seconds) => write!(
                f,
                "the server of {device} has not answered for {seconds} seconds: look whether it still runs"
            ),
        }
    }
}

impl std::error::Error for ServerError {}

/// Returns true of a device behind a server.
pub fn is_remote(device: &Device) -> bool {
    Kind::of(device.as_dispatch()) == Kind::Remote
}

/// Asks the server of a remote device, once in a process, whether it knows this crate's operations. Other devices need none.
///
/// Waits for the server then: for two answers, and half a minute at most.
///
/// # Errors
///
/// [`ServerError`] if it does not know them, or does not answer.
pub fn check_server(device: &Device) -> Result<(), ServerError> {
    #[cfg(feature = "remote")]
    if is_remote(device) {
        let ask = || server::ask(device).map_err(|fault| ServerError::new(device, fault));
        return server::ROWS_OF.of(device.clone(), ask).map(drop);
    }
    let _ = device;
    Ok(())
}

/// Returns true if a device keeps values of a dtype. Waits for the server of a remote one, once in a process for each dtype.
pub(crate) fn stores(device: &Device, dtype: DType) -> bool {
    static STORED: Answers<(Device, DType), bool> = Answers::new();

    let ask = || Dispatch::dtype_usage(device.as_dispatch(), dtype).contains(DTypeUsage::Storage);
    match is_remote(device) {
        true => STORED.of((device.clone(), dtype), ask),
        false => ask(),
    }
}

/// The dtype in which a backend's device has the rows of a [`Status`](crate::Status): that of a remote one's server, if it was asked.
#[cfg(any(feature = "cubecl", feature = "router"))]
pub(crate) fn rows_on(device: &dyn std::any::Any) -> DType {
    #[cfg(feature = "remote")]
    if let Some(device) = device.downcast_ref::<burn::backend::RemoteDevice>() {
        let answer = server::ROWS_OF.answered(Device::new(device.clone()));
        return answer.and_then(Result::ok).unwrap_or(DType::F32);
    }
    let _ = device;
    DType::F32
}

#[cfg(feature = "remote")]
mod server {
    use burn::backend::ir::{CustomOpIr, TensorIr};
    use burn::backend::{DispatchDevice, Remote};
    use burn::remote::CustomOpClient;
    use burn::tensor::{DType, Device, Shape, Tensor};
    use std::panic::{AssertUnwindSafe, catch_unwind};
    use std::{sync::mpsc::channel, thread, time::Duration};

    use super::{ROWS, ServerError, ServerFault};
    use crate::{answers::Answers, panic_message};

    /// Seconds after which a server that says nothing is given up.
    const PATIENCE: u64 = 30;

    /// The dtype of a status, which a server knows that knows this crate's operations.
    pub(super) static ROWS_OF: Answers<Device, Result<DType, ServerError>> = Answers::new();

    /// Asks the server of a device for the dtype of a status.
    pub(super) fn ask(device: &Device) -> Result<DType, ServerFault> {
        let inner = device.clone().inner();
        let (sender, answer) = channel();
        // Burn waits for ever.
        thread::spawn(move || sender.send(answer_of(&inner)));
        let answer = answer.recv_timeout(Duration::from_secs(PATIENCE));
        answer.unwrap_or(Err(ServerFault::Silent(PATIENCE)))
    }

    /// Sends a value there and back, and then asks for a status: a server that does not know how ends the session.
    fn answer_of(device: &Device) -> Result<DType, ServerFault> {
        read(|| Tensor::from_floats([1.0], device)).map_err(ServerFault::Gone)?;
        let is_wide = read(|| {
            let DispatchDevice::Remote(device) = device.as_dispatch() else {
                unreachable!("it is a remote device");
            };
            let client = CustomOpClient::new(device);
            let id = client.create_empty_handle();
            let output = TensorIr::uninit(id, Shape::from([1]), DType::F32);
            let mut outputs = client.register(CustomOpIr::new(ROWS, &[], &[output]));
            Tensor::from_primitive::<Remote>(outputs.remove(0))
        });
        match is_wide.map_err(|_| ServerFault::LacksOperations)? {
            true => Ok(DType::F64),
            false => Ok(DType::F32),
        }
    }

    /// Reads whether a value is above 0; or gives the message of Burn's error, or of its panic.
    fn read(tensor: impl FnOnce() -> Tensor<1>) -> Result<bool, String> {
        let read = catch_unwind(AssertUnwindSafe(|| tensor().try_into_data()));
        let read = read.map_err(|panic| panic_message(&*panic).to_string())?;
        let data = read.map_err(|error| error.to_string())?;
        Ok(data.iter::<f32>().any(|value| value > 0.0))
    }
}
