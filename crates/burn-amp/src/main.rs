//! `burn-amp serve` lends devices of this machine to training programs on others.

use burn::server::{IrohIdentity, IrohRelays, IrohTransport, TokenAuthorizer};
use burn::server::{Transport, WebSocketTransport};
use burn::tensor::{Device, DeviceType, Tensor};
use clap::{Args, Parser};
use std::error::Error;
use std::net::{SocketAddr, TcpListener};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::{env, path::PathBuf, process::ExitCode, str::FromStr};

/// The variable that holds the secret of clients.
const TOKEN: &str = "BURN_AMP_TOKEN";

/// Lends devices of this machine to programs that train with burn-amp on others
#[derive(Parser)]
#[command(version)]
enum Command {
    /// Serves devices until Ctrl+C
    ///
    /// Clients connect by `Device::remote_options(&RemoteHost::websocket("ws://127.0.0.1:3000"))`. If the variable BURN_AMP_TOKEN is set, they have to
    /// give its value by `with_credential`; other machines are never served without it.
    Serve(Options),
}

#[derive(Args)]
struct Options {
    /// A backend of this build, and the number of its device: `cuda:1`. May be given several times, for devices of Flex or for such of CubeCL's [default: the
    /// best one]
    #[arg(long, value_name = "BACKEND[:NUMBER]")]
    device: Vec<Named>,
    /// Where clients come in by WebSocket, which is not encrypted
    #[arg(long, default_value = "127.0.0.1:3000", conflicts_with = "iroh")]
    address: SocketAddr,
    /// Serves over Iroh in its place, encrypted, from any network: the file of the server's identity, which is made if it is not there. Needs BURN_AMP_TOKEN
    #[arg(long, value_name = "FILE")]
    iroh: Option<PathBuf>,
    /// The relays of Iroh: `public`, `disabled` or the URL of one
    #[arg(long, default_value = "public", requires = "iroh")]
    relays: IrohRelays,
    /// The UDP port of Iroh, for clients that come without a relay [default: one that is free]
    #[arg(long, requires = "iroh")]
    port: Option<u16>,
}

/// A device, by its backend and its number there.
#[derive(Clone)]
struct Named(String, DeviceType, usize);

fn main() -> ExitCode {
    let Command::Serve(options) = Command::parse();
    match serve(options) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("{error}");
            ExitCode::FAILURE
        }
    }
}

fn serve(options: Options) -> Result<(), Box<dyn Error>> {
    let authorizer = match env::var(TOKEN) {
        Ok(token) => Some(TokenAuthorizer::new(token).map_err(|_| format!("{TOKEN} is empty"))?),
        Err(_) => None,
    };
    let is_here = options.iroh.is_none() && options.address.ip().is_loopback();
    if authorizer.is_none() && !is_here {
        let open = match options.iroh {
            Some(_) => "a server on Iroh".to_string(),
            None => options.address.to_string(),
        };
        return Err(format!(
            "{open} can be reached from other machines: set {TOKEN} to a secret, which clients give by `RemoteHost::with_credential`"
        )
        .into());
    }
    let mut devices = Vec::new();
    for named in &options.device {
        devices.push(named.device()?);
    }
    if devices.is_empty() {
        devices.push(Device::default());
    }
    for device in &devices {
        start(device)?;
    }
    let (transport, place) = options.transport()?;
    println!("serves {devices:?} at {place}");
    let server = burn_amp_kernels::remote_server(devices);
    let server = match authorizer {
        Some(authorizer) => server.with_authorizer(authorizer),
        None => server,
    };
    Ok(server.serve(transport)?)
}

impl Options {
    /// Opens the way in, and gives the place where clients find it.
    fn transport(&self) -> Result<(Transport, String), Box<dyn Error>> {
        let Some(file) = &self.iroh else {
            let address = self.address;
            let listener = TcpListener::bind(address).map_err(|error| {
                format!("cannot listen at {address}: {error}. Name another by `--address`")
            })?;
            let place = format!("ws://{}", listener.local_addr()?);
            return Ok((WebSocketTransport::from_listener(listener).into(), place));
        };
        let identity = IrohIdentity::load_or_create(file);
        let identity = identity.map_err(|error| format!("{}: {error}", file.display()))?;
        let place = format!("Iroh {}", identity.id());
        let mut transport = IrohTransport::new(identity).with_relays(self.relays.clone());
        if let Some(port) = self.port {
            transport = transport.with_port(port);
        }
        Ok((transport.into(), place))
    }
}

/// Computes something on a device, so that one that is not there is known before a client comes.
fn start(device: &Device) -> Result<(), String> {
    let compute = || Tensor::<1>::zeros([1], device).try_into_data();
    let computed = catch_unwind(AssertUnwindSafe(compute));
    match computed {
        Ok(Ok(_)) => Ok(()),
        Ok(Err(error)) => Err(format!("{device:?} does not compute: {error}")),
        Err(_) => Err(format!("{device:?} cannot be used: its message is above")),
    }
}

impl Named {
    fn device(&self) -> Result<Device, String> {
        let Self(name, kind, number) = self;
        let all: Vec<Device> = Device::enumerate(kind.clone()).into_iter().collect();
        let count = all.len();
        all.into_iter()
            .nth(*number)
            .ok_or_else(|| format!("there is no `{name}:{number}`: {count} devices were found"))
    }
}

impl FromStr for Named {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let (name, number) = text.split_once(':').unwrap_or((text, "0"));
        let number = number.parse();
        let number = number.map_err(|_| format!("{text:?} ends with no number"))?;
        let known = [
            #[cfg(feature = "flex")]
            ("flex", DeviceType::Flex),
            #[cfg(feature = "cuda")]
            ("cuda", DeviceType::Cuda),
            #[cfg(feature = "rocm")]
            ("rocm", DeviceType::Rocm),
            #[cfg(feature = "metal")]
            ("metal", DeviceType::Metal),
            #[cfg(feature = "vulkan")]
            ("vulkan", DeviceType::Vulkan),
            #[cfg(feature = "webgpu")]
            ("webgpu", DeviceType::WebGpu),
            #[cfg(feature = "wgpu")]
            ("wgpu", DeviceType::Wgpu),
            #[cfg(feature = "cpu")]
            ("cpu", DeviceType::Cpu),
        ];
        let names: Vec<&str> = known.iter().map(|(name, _)| *name).collect();
        let names = names.join(", ");
        let kind = known.into_iter().find(|(known, _)| *known == name);
        let (_, kind) = kind.ok_or_else(|| {
            format!("this build has {names}: others are features of burn-amp, such as `cuda`")
        })?;
        Ok(Self(name.to_string(), kind, number))
    }
}
