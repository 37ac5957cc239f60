import foredraft from './index.cjs';

export const { Engine, ForedraftError, Stream, devices, version } = foredraft;
export default foredraft;
