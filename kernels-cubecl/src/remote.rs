//! The server behind a remote device: whether it knows the Jobs, and what it has answered.

#[cfg(feature = "remote")]
use burn::backend::DispatchDevice;
use burn::backend::{Backend, DTypeUsage, Dispatch};
use burn::tensor::{DType, Device};
use std::fmt::{Display, Formatter, Result as Written};

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
    #[allow(unreachable_patterns)]
    match device.clone().inner().as_dispatch() {
        #[cfg(feature = "remote")]
        DispatchDevice::Remote(_) => true,
        _ => false,
    }
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
    if let Some(server) = server::of(device) {
        return server.rows(device).map(drop);
    }
    let _ = device;
    Ok(())
}

/// Returns true if a device keeps values of a dtype. Waits for the server of a remote one, once in a process for each dtype.
pub(crate) fn stores(device: &Device, dtype: DType) -> bool {
    let ask = || Dispatch::dtype_usage(device.as_dispatch(), dtype).contains(DTypeUsage::Storage);
    #[cfg(feature = "remote")]
    if let Some(server) = server::of(device) {
        return server.stores(dtype, ask);
    }
    ask()
}

/// The dtype in which a backend's device has the rows of a [`Status`](crate::Status): that of a remote one's server, if it was asked.
#[cfg(any(feature = "cubecl", feature = "router"))]
pub(crate) fn rows_on(device: &dyn std::any::Any) -> DType {
    #[cfg(feature = "remote")]
    if let Some(device) = device.downcast_ref::<burn::backend::RemoteDevice>() {
        let server = server::of(&Device::new(device.clone()));
        return server.map_or(DType::F32, |server| server.known_rows());
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
    use std::sync::{Arc, Mutex, OnceLock, PoisonError, mpsc::channel};
    use std::{thread, time::Duration};

    use super::{ROWS, ServerError, ServerFault};
    use crate::panic_message;

    /// Seconds after which a server that says nothing is given up.
    const PATIENCE: u64 = 30;

    /// The answers of a server.
    #[derive(Default)]
    pub(super) struct Server {
        /// The dtype of a status, which a server knows that knows this crate's operations.
        rows: OnceLock<Result<DType, ServerError>>,
        stored: Mutex<Vec<(DType, bool)>>,
    }

    /// The answers of a device's server so far. None of a device that has none.
    pub(super) fn of(device: &Device) -> Option<Arc<Server>> {
        static ALL: Mutex<Vec<(Device, Arc<Server>)>> = Mutex::new(Vec::new());
        if !super::is_remote(device) {
            return None;
        }
        let mut all = ALL.lock().unwrap_or_else(PoisonError::into_inner);
        let known = all.iter().find(|(other, _)| other == device);
        if let Some((_, server)) = known {
            return Some(server.clone());
        }
        let server = Arc::default();
        all.push((device.clone(), Arc::clone(&server)));
        Some(server)
    }

    impl Server {
        pub(super) fn rows(&self, device: &Device) -> Result<DType, ServerError> {
            let rows = self.rows.get_or_init(|| {
                let inner = device.clone().inner();
                let (sender, answer) = channel();
                // Burn waits for ever.
                thread::spawn(move || sender.send(ask(&inner)));
                let answer = answer.recv_timeout(Duration::from_secs(PATIENCE));
                let answer = answer.unwrap_or(Err(ServerFault::Silent(PATIENCE)));
                answer.map_err(|fault| ServerError::new(device, fault))
            });
            rows.clone()
        }

        /// The same, without asking.
        pub(super) fn known_rows(&self) -> DType {
            match self.rows.get() {
                Some(Ok(rows)) => *rows,
                _ => DType::F32,
            }
        }

        pub(super) fn stores(&self, dtype: DType, ask: impl FnOnce() -> bool) -> bool {
            let mut stored = self.stored.lock().unwrap_or_else(PoisonError::into_inner);
            let known = stored.iter().find(|(other, _)| *other == dtype);
            if let Some((_, answer)) = known {
                return *answer;
            }
            let answer = ask();
            stored.push((dtype, answer));
            answer
        }
    }

    /// Sends a value there and back, and then asks for a status: a server that does not know how ends the session.
    fn ask(device: &Device) -> Result<DType, ServerFault> {
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
